/* Where the Python is that has anynpu. What is said first counts:
 *
 * 1. the environment: ANYNPU_PYTHON (an interpreter), ANYNPU_LIBPYTHON, ANYNPU_SITE (folders of packages);
 * 2. the file anynpu-python.cfg next to the library, which whoever packages it may write: lines such as "python = /usr/bin/python3";
 * 3. the same in the user's cache, $XDG_CACHE_HOME/anynpu/python-HASH.cfg, which `anynpu lib` writes: HASH is that of the library's folder;
 * 4. the place of the library itself: PREFIX/lib/python3.11/site-packages/anynpu/dropin/lib belongs to PREFIX/bin/python3.11.
 *
 * In a program with more rights than its caller (see secure.h) neither the environment nor the cache is asked, and what the other two state is
 * only taken if nobody but root can change it.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "secure.h"
#include "shim.h"

enum { SIZE = 4096, MAX_ENVIRONMENTS = 8 };

/* By the rights that the program has, not by those of its caller. */
static int exists(const char *path)
{
    return faccessat(AT_FDCWD, path, F_OK, AT_EACCESS) == 0;
}

static int is_executable(const char *path)
{
    return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0;
}

/* Cuts the last component off; 0 if there is none. */
static int go_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return 0;
    *slash = '\0';
    return 1;
}

/* What does not fit is as good as absent. */
static void copy(char *to, size_t size, const char *from)
{
    size_t length = strlen(from);
    if (length >= size)
        length = 0;
    memcpy(to, from, length);
    to[length] = '\0';
}

/* The value of "key = value" in a file; 0 if the file or the key is missing. */
static int read_key(const char *path, const char *key, char *value, size_t size)
{
    char line[SIZE];
    int found = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *equals = strchr(line, '=');
        if (equals == NULL)
            continue;
        char *end = equals;
        while (end > line && isspace((unsigned char)end[-1]))
            end--;
        char *begin = equals + 1;
        while (*begin == ' ' || *begin == '\t')
            begin++;
        begin[strcspn(begin, "\r\n")] = '\0';
        if ((size_t)(end - line) == strlen(key) && strncmp(line, key, strlen(key)) == 0) {
            copy(value, size, begin);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

/* "3.11" from a text that begins with 3.11, such as 3.11.7. */
static int read_version(const char *text, char *version, size_t size)
{
    int major, minor;
    if (sscanf(text, "%d.%d", &major, &minor) != 2)
        return 0;
    snprintf(version, size, "%d.%d", major, minor);
    return 1;
}

/* The file of a virtual environment that states where its Python comes from. */
static int venv_key(const char *python, const char *key, char *value, size_t size)
{
    char path[SIZE];
    copy(path, sizeof path, python);
    return go_up(path) && go_up(path) && strlen(path) + 12 < sizeof path && read_key(strcat(path, "/pyvenv.cfg"), key, value, size);
}

/* The folder that the interpreter was installed into, such as /usr for /usr/bin/python3. */
static int base_prefix(const char *python, char *prefix)
{
    char home[SIZE] = "", place[SIZE + 8];
    copy(place, sizeof place, python);
    /* An environment that Python 3.10 made inside another one has that one as its home. */
    for (int depth = 0; depth < MAX_ENVIRONMENTS && venv_key(place, "home", home, sizeof home); depth++)
        snprintf(place, sizeof place, "%s/python", home);
    if (home[0] != '\0')
        copy(prefix, SIZE, home);
    else if (realpath(python, prefix) == NULL || !go_up(prefix))
        return 0;
    return go_up(prefix);
}

static void search_path(const char *name, char *found, size_t size)
{
    const char *path = anynpu_getenv("PATH");
    while (path != NULL && *path != '\0' && found[0] == '\0') {
        size_t length = strcspn(path, ":");
        char candidate[SIZE];
        snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, path, name);
        if (length > 0 && is_executable(candidate))
            copy(found, size, candidate);
        path += length + (path[length] == ':');
    }
}

/* From the place of the package: .../lib/python3.11/site-packages */
static void derive_python(struct anynpu_settings *settings)
{
    char folder[SIZE], candidate[SIZE + 32], name[32];
    copy(folder, sizeof folder, settings->site);
    if (!go_up(folder))
        return;
    const char *last = strrchr(folder, '/') + 1;
    if (strncmp(last, "python", 6) != 0 || !read_version(last + 6, settings->version, sizeof settings->version))
        return;
    snprintf(name, sizeof name, "python%s", settings->version);
    if (go_up(folder) && go_up(folder)) {
        const char *names[] = {name, "python3", "python"};
        for (size_t index = 0; index < 3 && settings->python[0] == '\0'; index++) {
            snprintf(candidate, sizeof candidate, "%s/bin/%s", folder, names[index]);
            if (is_executable(candidate))
                copy(settings->python, sizeof settings->python, candidate);
        }
    }
    if (settings->python[0] == '\0')
        search_path(name, settings->python, sizeof settings->python); /* installed for one user: the interpreter is the system's */
}

static void find_version(struct anynpu_settings *settings)
{
    char value[SIZE];
    if (venv_key(settings->python, "version", value, sizeof value) || venv_key(settings->python, "version_info", value, sizeof value))
        read_version(value, settings->version, sizeof settings->version);
    else if (realpath(settings->python, value) != NULL) {
        const char *last = strrchr(value, '/') + 1;
        if (strncmp(last, "python", 6) == 0)
            read_version(last + 6, settings->version, sizeof settings->version);
    }
}

static void find_libpython(struct anynpu_settings *settings)
{
    char prefix[SIZE], candidate[2 * SIZE];
    const char *folders[] = {"lib", "lib64"};
    for (size_t index = 0; index < 2 && base_prefix(settings->python, prefix); index++) {
        snprintf(candidate, sizeof candidate, "%s/%s/libpython%s.so.1.0", prefix, folders[index], settings->version);
        if (exists(candidate)) {
            copy(settings->libpython, sizeof settings->libpython, candidate);
            return;
        }
    }
    snprintf(settings->libpython, sizeof settings->libpython, "libpython%s.so.1.0", settings->version);
}

/* FNV-1a with 64 bits, as anynpu.dropin.environment computes it. */
static unsigned long long hash(const char *text)
{
    unsigned long long value = 0xcbf29ce484222325ull;
    for (; *text != '\0'; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3ull;
    return value;
}

/* The file in the user's cache for libraries in a folder; empty in a program with more rights than its caller. */
static void cached_file(const char *folder, char *file, size_t size)
{
    const char *cache = anynpu_getenv("XDG_CACHE_HOME"), *home = anynpu_getenv("HOME");
    int length = -1;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(file, size, "%s/anynpu/python-%016llx.cfg", cache, hash(folder));
    else if (home != NULL && home[0] == '/')
        length = snprintf(file, size, "%s/.cache/anynpu/python-%016llx.cfg", home, hash(folder));
    if (length < 0 || (size_t)length >= size)
        file[0] = '\0';
}

void anynpu_find_settings(struct anynpu_settings *settings)
{
    Dl_info info;
    char path[SIZE];
    memset(settings, 0, sizeof *settings);
    if (dladdr((void *)(uintptr_t)anynpu_find_settings, &info) && realpath(info.dli_fname, path) != NULL && go_up(path)) {
        char file[SIZE + 32];
        snprintf(file, sizeof file, "%s/anynpu-python.cfg", path);
        if (!exists(file))
            cached_file(path, file, sizeof file);
        else if (anynpu_is_secure() && !anynpu_is_trusted(file))
            file[0] = '\0';
        if (read_key(file, "python", settings->python, sizeof settings->python) && !exists(settings->python))
            settings->python[0] = '\0'; /* the environment has moved */
        if (settings->python[0] != '\0') {
            read_key(file, "libpython", settings->libpython, sizeof settings->libpython);
            read_key(file, "version", settings->version, sizeof settings->version);
        }
        if (!read_key(file, "site", settings->site, sizeof settings->site) && go_up(path) && go_up(path) && go_up(path))
            copy(settings->site, sizeof settings->site, path);
    }
    const char *python = anynpu_getenv("ANYNPU_PYTHON"), *libpython = anynpu_getenv("ANYNPU_LIBPYTHON");
    const char *site = anynpu_getenv("ANYNPU_SITE");
    if (python != NULL && python[0] != '\0') {
        copy(settings->python, sizeof settings->python, python);
        settings->libpython[0] = settings->version[0] = '\0';
    }
    if (settings->python[0] == '\0')
        derive_python(settings);
    if (site != NULL && site[0] != '\0')
        copy(settings->site, sizeof settings->site, site);
    if (settings->python[0] != '\0' && settings->version[0] == '\0')
        find_version(settings);
    if (libpython != NULL && libpython[0] != '\0')
        copy(settings->libpython, sizeof settings->libpython, libpython);
    else if (settings->libpython[0] == '\0' && settings->version[0] != '\0')
        find_libpython(settings);
}

/* What of the settings others can change; NULL if all of them may be used. */
const char *anynpu_untrusted_setting(const struct anynpu_settings *settings)
{
    char prefix[SIZE];
    if (!anynpu_is_secure())
        return NULL;
    if (settings->python[0] != '\0' &&
        !(anynpu_is_trusted(settings->python) && base_prefix(settings->python, prefix) && anynpu_is_trusted(prefix)))
        return settings->python;
    if (settings->libpython[0] != '\0' && !anynpu_is_trusted(settings->libpython))
        return settings->libpython;
    return anynpu_are_trusted(settings->site) ? NULL : settings->site;
}

/* Python ends the process if it finds no standard library when it starts, so this looks first. */
int anynpu_has_standard_library(const struct anynpu_settings *settings)
{
    char prefix[SIZE], candidate[2 * SIZE];
    const char *home = anynpu_getenv("PYTHONHOME");
    const char *patterns[] = {"%s/lib/python%s/encodings/__init__.py", "%s/lib64/python%s/encodings/__init__.py"};
    if (home != NULL && home[0] != '\0') {
        copy(prefix, sizeof prefix, home);
        prefix[strcspn(prefix, ":")] = '\0';
    } else if (!base_prefix(settings->python, prefix))
        return 0;
    for (size_t index = 0; index < 2; index++) {
        snprintf(candidate, sizeof candidate, patterns[index], prefix, settings->version);
        if (exists(candidate))
            return 1;
    }
    char digits[16];
    size_t length = 0;
    for (const char *mark = settings->version; *mark != '\0' && length + 1 < sizeof digits; mark++)
        if (*mark != '.')
            digits[length++] = *mark;
    digits[length] = '\0';
    snprintf(candidate, sizeof candidate, "%s/lib/python%s.zip", prefix, digits);
    return exists(candidate);
}
