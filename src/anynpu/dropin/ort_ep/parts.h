/* Compiled parts of an ONNX model: a child process compiles them, a folder keeps them. */
#ifndef ANYNPU_ORT_PARTS_H
#define ANYNPU_ORT_PARTS_H

#include "buffer.h"
#include "provider.h"

/* outputs: the names that it gives, as hexadecimal text, each with a NUL after it
 * dynamic: it takes several sets of shapes */
typedef struct {
    char file[NAME_SIZE];
    size_t *members;
    size_t member_count;
    Buffer outputs;
    bool dynamic;
} Part;

typedef struct {
    char folder[PATH_SIZE];
    Part *parts;
    size_t count;
} Plan;

/* The plan for a model of node_count nodes. Parts and reasons are written to the logger. */
OrtStatus *find_parts(const Settings *settings, const OrtLogger *logger, const Buffer *model, size_t node_count, Plan *plan);
/* The part that gives a value; null if there is none. */
const Part *part_with_output(const Plan *plan, const char *name);
void free_plan(Plan *plan);

#endif
