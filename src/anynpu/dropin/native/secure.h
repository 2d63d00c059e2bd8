/* What may be believed in a program with more rights than its caller. */
#ifndef ANYNPU_SECURE_H
#define ANYNPU_SECURE_H

/* 1 in a program with rights that its caller does not have. */
int anynpu_is_secure(void);

/* The environment; nothing of it in a program of that kind. */
const char *anynpu_getenv(const char *name);

/* 1 if nobody but root can change what lies at a path, which is absolute: the file, and each folder above it. */
int anynpu_is_trusted(const char *path);

/* The same for several paths with colons between them. */
int anynpu_are_trusted(const char *paths);

#endif
