/* The parts that every drop-in library shares. A library itself is a generated file with one function for each call of its interface;
 * each goes through the gate and jumps to an entry that Python has filled in.
 *
 * State and locks. The gate (gate.c) has one atomic word for what became of Python, a count of the calls that are inside, and a lock
 * that only the start of Python and fork() take. Threads with little stack have a helper thread each (stack.c), which ends with them.
 * Nothing is ever torn down: the library stays loaded until the process ends.
 */
#ifndef ANYNPU_SHIM_H
#define ANYNPU_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "start.h"

/* What the generated file of a library provides. */
extern anynpu_start anynpu_library;

/* How a call goes on after the gate. */
enum anynpu_way {
    ANYNPU_REFUSED,  /* there is no Python: give the interface's error */
    ANYNPU_DIRECT,   /* jump */
    ANYNPU_ELSEWHERE /* this stack is too small: use anynpu_call_elsewhere */
};

enum anynpu_way anynpu_enter(void);
void anynpu_leave(void); /* after DIRECT and ELSEWHERE */

/* Run call(frame) on a thread with a large stack, and wait for it. */
void anynpu_call_elsewhere(void (*call)(void *frame), void *frame);

/* gate.c, for the other parts */
int anynpu_inside(void); /* calls of this thread that are inside */
void anynpu_set_inside(int calls);
void anynpu_close(void);

/* stack.c */
int anynpu_stack_is_large(void);
int anynpu_run_on_large_stack(void (*call)(void *frame), void *frame); /* once, on a thread of its own; 0 if there is none to be had */
void anynpu_forget_helpers(void);                                      /* in a forked child: their threads do not exist */

/* python.c: find or start Python and let it fill the table; writes one line on stderr if that fails. */
int anynpu_start_python(anynpu_start *start);
/* A caller that holds Python's lock gives it up here, and takes it back. */
void *anynpu_release_python(void);
void anynpu_resume_python(void *state);
void anynpu_before_fork(void);
void anynpu_after_fork_parent(void);
void anynpu_after_fork_child(void);

/* settings.c: where Python is. Empty strings for what is not known. */
struct anynpu_settings {
    char python[4096];    /* the interpreter of the environment that has anynpu */
    char libpython[4096]; /* the library with the interpreter in it */
    char site[4096];      /* the folders with the package and what it needs, with colons between them */
    char version[16];     /* such as 3.11 */
};

void anynpu_find_settings(struct anynpu_settings *settings);
const char *anynpu_untrusted_setting(const struct anynpu_settings *settings);
int anynpu_has_standard_library(const struct anynpu_settings *settings);

/* One line on stderr: "librknnrt (anynpu): ..." */
void anynpu_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
