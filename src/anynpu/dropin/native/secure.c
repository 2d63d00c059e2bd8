/* Programs with rights that their caller does not have: set-user-ID, set-group-ID, or with capabilities of their file.
 *
 * Who starts such a program chooses its environment, and must not choose with it what the program executes. There the environment counts for
 * nothing, and Python and its packages are only taken from places that nobody but root can change.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include "secure.h"

/* A test replaces these two to try the rest of this file without being root. */
#ifdef ANYNPU_TEST_SECURE
#include <unistd.h>
int anynpu_is_secure(void)
{
    return 1;
}

static uid_t trusted_owner(void)
{
    return getuid();
}
#else
int anynpu_is_secure(void)
{
    return getauxval(AT_SECURE) != 0;
}

static uid_t trusted_owner(void)
{
    return 0;
}
#endif

const char *anynpu_getenv(const char *name)
{
    return anynpu_is_secure() ? NULL : getenv(name);
}

/* Others can neither write to it nor put something else in its place. In a folder with the sticky bit nobody moves what another owns. */
static int is_fixed(const char *path, int is_last)
{
    struct stat status;
    if (stat(path, &status) != 0 || (status.st_uid != 0 && status.st_uid != trusted_owner()))
        return 0;
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        return 1;
    return !is_last && S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
}

int anynpu_is_trusted(const char *path)
{
    if (path[0] != '/')
        return 0;
    char *real = realpath(path, NULL);
    if (real == NULL)
        return 0;
    int trusted = is_fixed(real, 1);
    for (char *slash = strrchr(real, '/'); trusted && slash != NULL; slash = strrchr(real, '/')) {
        slash[slash == real] = '\0'; /* what remains of "/usr" is "/" */
        trusted = is_fixed(real, 0);
        if (slash == real)
            break;
    }
    free(real);
    return trusted;
}

int anynpu_are_trusted(const char *paths)
{
    while (*paths != '\0') {
        size_t length = strcspn(paths, ":");
        char *path = strndup(paths, length);
        int trusted = path != NULL && anynpu_is_trusted(path);
        free(path);
        if (!trusted)
            return 0;
        paths += length + (paths[length] == ':');
    }
    return 1;
}
