/* Compiled parts of an ONNX model.
 *
 * A folder of the user's cache has one entry for each model, by the SHA-256 of its bytes, the options and the version. An entry is made under
 * another name and renamed when it is complete, so that processes may compile the same model at once. The compiler is the command 'anynpu ort
 * parts' in a process of its own. Its standard output reaches this process through a pipe, whose end states that the child has ended. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"

extern char **environ;

enum { MAX_ARGUMENTS = 64, MAX_PLAN = 64 << 20 };

/* -- the folder */

static OrtStatus *make_folder(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    struct stat facts;
    if ((mkdir(path, 0700) != 0 && errno != EEXIST) || stat(path, &facts) != 0)
        return fail("anynpu: the cache folder %s cannot be created: %m\n  hint: name another one with the option cache_dir", path);
    if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return fail("anynpu: others can write to the cache folder %s\n  hint: chmod 700 it, or name another one with the option cache_dir", path);
    return NULL;
}

static OrtStatus *cache_folder(const Settings *settings, char *path, size_t size)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int length;
    if (settings->cache[0] != '\0')
        length = snprintf(path, size, "%s", settings->cache);
    else if (cache != NULL && cache[0] == '/')
        length = snprintf(path, size, "%s/anynpu/ort", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(path, size, "%s/.cache/anynpu/ort", home);
    else
        return fail("anynpu: there is no home folder for compiled models\n  hint: name a folder with the option cache_dir");
    if (length < 0 || (size_t)length + 2 * HASH_TEXT >= size)
        return fail("anynpu: the path of the cache folder is too long\n  hint: name another one with the option cache_dir");
    return make_folder(path);
}

/* Names, sizes and times of the files in a folder, or of a file: what a cache must notice of a dataset. */
static void put_state(Buffer *key, const char *path)
{
    struct stat facts;
    if (path[0] == '\0' || stat(path, &facts) != 0)
        return;
    put_format(key, "%lld %lld.%09ld\n", (long long)facts.st_size, (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
    struct dirent **entries;
    int count = S_ISDIR(facts.st_mode) ? scandir(path, &entries, NULL, alphasort) : 0;
    for (int index = 0; index < count; index++) {
        char name[PATH_SIZE];
        if (snprintf(name, sizeof name, "%s/%s", path, entries[index]->d_name) < (int)sizeof name && stat(name, &facts) == 0) {
            put_text(key, entries[index]->d_name);
            put_format(key, " %lld %lld.%09ld\n", (long long)facts.st_size, (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
        }
        free(entries[index]);
    }
    if (count > 0)
        free(entries);
}

static OrtStatus *key_of(const Settings *settings, const Buffer *model, char hash[HASH_TEXT])
{
    const char *const texts[] = {settings->target, settings->dtype, settings->dataset, settings->mean, settings->std, settings->shape};
    Buffer key = {.data = NULL};
    sha256(model->data, model->size, hash);
    put_text(&key, hash);
    put_format(&key, "\n%s\n", ANYNPU_VERSION);
    for (size_t index = 0; index < sizeof texts / sizeof *texts; index++)
        put(&key, texts[index], strlen(texts[index]) + 1);
    put_state(&key, settings->dataset);
    if (!key.failed)
        sha256(key.data, key.size, hash);
    bool failed = key.failed;
    release(&key);
    return failed ? no_memory() : NULL;
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
    rmdir(path);
}

/* -- the child */

/* The command: the option, the one of the installation that this library belongs to, or the one on PATH. */
static void find_command(const Settings *settings, char *command, size_t size)
{
    char folder[PATH_SIZE];
    snprintf(command, size, "%s", settings->compiler[0] != '\0' ? settings->compiler : "anynpu");
    if (settings->compiler[0] != '\0' || !own_folder(folder, sizeof folder))
        return;
    for (int level = 0; level < 6; level++) { /* PREFIX/lib/python3.11/site-packages/anynpu/dropin/lib */
        char *slash = strrchr(folder, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
    char candidate[PATH_SIZE + 16];
    snprintf(candidate, sizeof candidate, "%s/bin/anynpu", folder);
    if (access(candidate, X_OK) == 0 && strlen(candidate) < size)
        snprintf(command, size, "%s", candidate);
}

/* The environment without what changes programs under 'anynpu exec'. */
static char **child_environment(void)
{
    size_t count = 0, kept = 0;
    while (environ != NULL && environ[count] != NULL)
        count++;
    char **copy = calloc(count + 1, sizeof *copy);
    for (size_t index = 0; copy != NULL && index < count; index++)
        if (strncmp(environ[index], "LD_PRELOAD=", 11) != 0 && strncmp(environ[index], "ANYNPU_MACHINE=", 15) != 0)
            copy[kept++] = environ[index];
    return copy;
}

static OrtStatus *start_child(const char *command, char **arguments, const char *log, pid_t *child, int *output)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return fail("anynpu: a pipe cannot be created: %m");
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0); /* a group of its own, which ends with it */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char **environment = child_environment();
    int problem = environment == NULL ? ENOMEM : posix_spawnp(child, command, &actions, &attributes, arguments, environment);
    free(environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    *output = ends[0];
    if (problem == 0)
        return NULL;
    close(ends[0]);
    return fail("anynpu: the compiler '%s' cannot be started: %s\n"
                "  hint: pip install 'anynpu[sim]', or name the command with the option compiler", command, strerror(problem));
}

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait until the child has closed its output; 0 if the time is over. */
static int wait_for_end(int output, int seconds)
{
    char ignored[4096];
    int64_t end = milliseconds() + (int64_t)seconds * 1000;
    for (;;) {
        int64_t left = end - milliseconds();
        struct pollfd waiting = {.fd = output, .events = POLLIN};
        if (left <= 0)
            return 0;
        int ready = poll(&waiting, 1, left > 1000 ? 1000 : (int)left);
        if (ready < 0 && errno != EINTR)
            return 0;
        if (ready <= 0)
            continue;
        ssize_t size = read(output, ignored, sizeof ignored);
        if (size == 0 || (size < 0 && errno != EINTR))
            return 1;
    }
}

/* The end of a text file. */
static void read_end(const char *path, char *text, size_t size)
{
    text[0] = '\0';
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return;
    if (fseek(file, -(long)size + 1, SEEK_END) != 0)
        rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
    for (size_t length = strlen(text); length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' '); length--)
        text[length - 1] = '\0';
}

static size_t add_option(char **arguments, size_t count, const char *flag, const char *value)
{
    if (value[0] != '\0') {
        arguments[count++] = (char *)flag;
        arguments[count++] = (char *)value;
    }
    return count;
}

/* Options with several values, such as shapes, separate them by ';'. The texts are cut in place. */
static size_t add_options(char **arguments, size_t count, const char *flag, char *values)
{
    char *rest = values;
    for (char *value = strsep(&rest, ";"); value != NULL; value = strsep(&rest, ";"))
        if (count + 8 < MAX_ARGUMENTS)
            count = add_option(arguments, count, flag, value);
    return count;
}

static OrtStatus *compile_into(const Settings *settings, const char *model, const char *folder)
{
    char command[PATH_SIZE], log[PATH_SIZE + 128], text[2048];
    char *arguments[MAX_ARGUMENTS + 1] = {NULL};
    Settings given = *settings;
    pid_t child = 0;
    int output = -1, status = -1;
    size_t count = 0;
    find_command(settings, command, sizeof command);
    arguments[count++] = command;
    arguments[count++] = "ort";
    arguments[count++] = "parts";
    arguments[count++] = (char *)model;
    count = add_option(arguments, count, "-o", folder);
    count = add_option(arguments, count, "--target", given.target);
    count = add_option(arguments, count, "--dtype", given.dtype);
    count = add_option(arguments, count, "--dataset", given.dataset);
    count = add_options(arguments, count, "--mean", given.mean);
    count = add_options(arguments, count, "--std", given.std);
    count = add_options(arguments, count, "--shape", given.shape);
    snprintf(log, sizeof log, "%s/log", folder);
    TRY(start_child(command, arguments, log, &child, &output));
    int ended = wait_for_end(output, settings->timeout);
    close(output);
    if (!ended)
        kill(-child, SIGKILL);
    pid_t waited;
    while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    if (!ended)
        return fail("anynpu: compiling took longer than %d s\n  hint: set the option compile_timeout, or compile the model beforehand with "
                    "'anynpu compile' and 'anynpu ort wrap'", settings->timeout);
    if (waited == child && status != 0) {
        read_end(log, text, sizeof text);
        return fail("anynpu: the compiler failed (%s %d): %s", WIFSIGNALED(status) ? "signal" : "exit status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), text);
    }
    return NULL; /* where the program ignores SIGCHLD there is no status; then the plan decides */
}

static OrtStatus *write_file(const char *path, const Buffer *content)
{
    FILE *file = fopen(path, "wbxe");
    bool written = file != NULL && fwrite(content->data, 1, content->size, file) == content->size;
    if (file == NULL || fclose(file) != 0 || !written)
        return fail("anynpu: %s cannot be written: %m\n  hint: free space, or name another folder with the option cache_dir", path);
    return NULL;
}

static OrtStatus *make_entry(const Settings *settings, const char *entry, const Buffer *model)
{
    static unsigned number;
    char work[PATH_SIZE + 64], path[PATH_SIZE + 80];
    unsigned own = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    snprintf(work, sizeof work, "%s.%ld.%u", entry, (long)getpid(), own);
    remove_folder(work); /* of a process that had the same number and was killed */
    if (mkdir(work, 0700) != 0)
        return fail("anynpu: the folder %s cannot be created: %m\n  hint: name another one with the option cache_dir", work);
    snprintf(path, sizeof path, "%s/model.onnx", work);
    OrtStatus *status = write_file(path, model);
    if (status == NULL)
        status = compile_into(settings, path, work);
    unlink(path);
    if (status == NULL && rename(work, entry) != 0 && errno != EEXIST && errno != ENOTEMPTY)
        status = fail("anynpu: %s cannot be renamed: %m\n  hint: name another folder with the option cache_dir", work);
    remove_folder(work); /* also what another process has made in the meantime */
    return status;
}

/* -- the plan */

static OrtStatus *damaged(const Plan *plan)
{
    return fail("anynpu: the compiled model in %s is damaged\n  hint: remove the folder", plan->folder);
}

static OrtStatus *add_part(Plan *plan, const char *file)
{
    if (strchr(file, '/') != NULL || strlen(file) >= NAME_SIZE)
        return damaged(plan);
    Part *parts = realloc(plan->parts, (plan->count + 1) * sizeof *parts);
    if (parts == NULL)
        return no_memory();
    plan->parts = parts;
    parts[plan->count] = (Part){.members = NULL};
    memcpy(parts[plan->count++].file, file, strlen(file) + 1);
    return NULL;
}

static OrtStatus *add_members(Plan *plan, char *numbers, size_t node_count)
{
    Part *part = &plan->parts[plan->count - 1];
    size_t *members = calloc(node_count, sizeof *members), count = 0;
    if (members == NULL)
        return no_memory();
    free(part->members);
    part->members = members;
    char *rest = numbers;
    for (char *number = strsep(&rest, " "); number != NULL; number = strsep(&rest, " ")) {
        size_t node = strtoull(number, NULL, 10);
        if (count == node_count || node >= node_count)
            return damaged(plan);
        members[count++] = node;
    }
    part->member_count = count;
    return NULL;
}

static OrtStatus *read_line(Plan *plan, const OrtLogger *logger, char *line, size_t node_count, bool *ended)
{
    char *rest = strchr(line, ' ');
    if (rest != NULL)
        *rest++ = '\0';
    if (strcmp(line, "end") == 0) {
        *ended = true;
        return NULL;
    }
    if (rest == NULL)
        return damaged(plan);
    if (strcmp(line, "nodes") == 0)
        return strtoull(rest, NULL, 10) == node_count ? NULL : damaged(plan);
    if (strcmp(line, "part") == 0)
        return add_part(plan, rest);
    if (strcmp(line, "left") == 0) {
        logged(logger, LOG_WARNING, "anynpu: left to other providers: %s", rest);
        return NULL;
    }
    if (plan->count == 0)
        return damaged(plan);
    if (strcmp(line, "shapes") == 0) {
        plan->parts[plan->count - 1].dynamic = strcmp(rest, "several") == 0;
        return NULL;
    }
    if (strcmp(line, "members") == 0)
        return add_members(plan, rest, node_count);
    if (strcmp(line, "output") != 0)
        return damaged(plan);
    put(&plan->parts[plan->count - 1].outputs, rest, strlen(rest) + 1);
    return plan->parts[plan->count - 1].outputs.failed ? no_memory() : NULL;
}

static OrtStatus *read_plan(Plan *plan, const OrtLogger *logger, size_t node_count)
{
    char path[PATH_SIZE + 8], *line = NULL;
    size_t room = 0, claimed = 0;
    bool ended = false, counted = false;
    snprintf(path, sizeof path, "%s/plan", plan->folder);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return damaged(plan);
    OrtStatus *status = NULL;
    while (status == NULL && !ended && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        counted = counted || strncmp(line, "nodes ", 6) == 0;
        status = read_line(plan, logger, line, node_count, &ended);
    }
    free(line);
    fclose(file);
    for (size_t index = 0; index < plan->count; index++)
        claimed += plan->parts[index].member_count;
    if (status == NULL && !(ended && counted))
        status = damaged(plan);
    if (status == NULL)
        logged(logger, LOG_INFO, "anynpu: claimed %zu of %zu nodes in %zu parts, from %s", claimed, node_count, plan->count, plan->folder);
    return status;
}

OrtStatus *find_parts(const Settings *settings, const OrtLogger *logger, const Buffer *model, size_t node_count, Plan *plan)
{
    char hash[HASH_TEXT];
    struct stat facts;
    free_plan(plan);
    TRY(cache_folder(settings, plan->folder, sizeof plan->folder));
    TRY(key_of(settings, model, hash));
    strcat(plan->folder, "/"); /* cache_folder leaves space */
    strcat(plan->folder, hash);
    if (stat(plan->folder, &facts) != 0)
        TRY(make_entry(settings, plan->folder, model));
    return read_plan(plan, logger, node_count);
}

const Part *part_with_output(const Plan *plan, const char *name)
{
    char hex[2 * NAME_SIZE * 8 + 1];
    size_t length = strlen(name);
    if (length >= sizeof hex / 2)
        return NULL;
    for (size_t index = 0; index < length; index++)
        snprintf(hex + 2 * index, 3, "%02x", (unsigned char)name[index]);
    hex[2 * length] = '\0';
    for (size_t index = 0; index < plan->count; index++) {
        const Buffer *outputs = &plan->parts[index].outputs;
        for (size_t at = 0; at < outputs->size; at += strlen((const char *)outputs->data + at) + 1)
            if (strcmp((const char *)outputs->data + at, hex) == 0)
                return &plan->parts[index];
    }
    return NULL;
}

void free_plan(Plan *plan)
{
    for (size_t index = 0; index < plan->count; index++) {
        free(plan->parts[index].members);
        release(&plan->parts[index].outputs);
    }
    free(plan->parts);
    *plan = (Plan){.parts = NULL};
}
