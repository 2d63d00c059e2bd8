/* Finds the Python that runs in this process, or starts one, and lets the package fill the table of the library.
 *
 * Nothing here is compiled against Python: its functions are looked up by name, all of them in every Python from 3.10 on. A Python that is
 * started here installs no signal handlers, and leaves the locale and the environment of the program as they were. It is never ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "secure.h"
#include "shim.h"

/* What runs in Python. Errors become one line; nothing is left behind in __main__ of a program that is Python itself. */
static const char bootstrap[] =
    "exec('''\n"
    "import sys\n"
    "if %d:\n" /* only Python's view of the environment: the program keeps its own */
    "    import os\n"
    "    for name in list(os.environ._data):\n"
    "        if %d or name.startswith(b'ANYNPU_'):\n"
    "            del os.environ._data[name]\n"
    "realtime = bytes.fromhex('%s').decode()\n" /* set by this process after its Python had read the environment */
    "if realtime:\n"
    "    import os\n"
    "    os.environ.setdefault('ANYNPU_REALTIME', realtime)\n"
    "def start(library, folders, version, address):\n"
    "    here = '.'.join(map(str, sys.version_info[:2]))\n"
    "    def fill():\n"
    "        import anynpu.dropin.table as table\n"
    "        table.fill(library, address)\n"
    "    try:\n"
    "        try:\n"
    "            fill()\n"
    "        except ModuleNotFoundError:\n"
    "            if version not in ('', here):\n"
    "                raise RuntimeError(f'it is installed for Python {version}; install it for this one too') from None\n"
    "            import site\n"
    "            for folder in folders.split(':'):\n"
    "                site.addsitedir(folder)\n"
    "            fill()\n"
    "    except BaseException as error:\n"
    "        text = ' '.join(str(error).split())\n"
    "        sys.stderr.write(f'{library} (anynpu): anynpu does not start in Python {here} ({sys.prefix}): '\n"
    "                         f'{type(error).__name__}: {text}\\\\n')\n"
    "        sys.stderr.flush()\n"
    "start(bytes.fromhex('%s').decode(), bytes.fromhex('%s').decode(errors='surrogateescape'), '%s', %llu)\n"
    "''', {})\n";

static struct {
    int (*is_initialized)(void);
    void (*set_program_name)(const wchar_t *);
    void (*initialize)(int);
    const char *(*version)(void);
    wchar_t *(*decode_locale)(const char *, size_t *);
    int (*ensure)(void);
    void (*release)(int);
    int (*run)(const char *);
    void *(*save_thread)(void);
    void (*before_fork)(void);
    void (*after_fork_parent)(void);
    void (*after_fork_child)(void);
} python;

enum { REALTIME_SIZE = 32, WAS_WITHOUT_LOCK = 1 }; /* what PyGILState_Ensure gives to a thread that has to give the lock back */

static int started_here;
static __thread int fork_state;

static void *look_up(void *library, const char *name, int *missing)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL)
        *missing = 1;
    return symbol;
}

/* 1 if all that is needed is there. */
static int bind(void *library)
{
    int missing = 0;
#define BIND(member, name) (*(void **)(&python.member) = look_up(library, name, &missing))
    BIND(is_initialized, "Py_IsInitialized");
    BIND(initialize, "Py_InitializeEx");
    BIND(version, "Py_GetVersion");
    BIND(decode_locale, "Py_DecodeLocale");
    BIND(ensure, "PyGILState_Ensure");
    BIND(release, "PyGILState_Release");
    BIND(run, "PyRun_SimpleString");
    BIND(save_thread, "PyEval_SaveThread");
    BIND(before_fork, "PyOS_BeforeFork");
    BIND(after_fork_parent, "PyOS_AfterFork_Parent");
    BIND(after_fork_child, "PyOS_AfterFork_Child");
    int complete = !missing;
    BIND(set_program_name, "Py_SetProgramName"); /* only to start one */
#undef BIND
    return complete;
}

static void to_hex(const char *text, char *hex)
{
    for (; *text != '\0'; text++, hex += 2)
        sprintf(hex, "%02x", (unsigned char)*text);
    *hex = '\0';
}

static int fill_table(anynpu_start *start, const struct anynpu_settings *settings)
{
    static char code[sizeof bootstrap + 4 * sizeof settings->site + 2 * REALTIME_SIZE];
    static char library[256], site[2 * sizeof settings->site + 1], realtime[2 * REALTIME_SIZE + 1];
    const char *speed = secure_getenv("ANYNPU_REALTIME");
    to_hex(start->library, library);
    to_hex(settings->site, site);
    to_hex(speed != NULL && strlen(speed) <= REALTIME_SIZE ? speed : "", realtime);
    snprintf(code, sizeof code, bootstrap, anynpu_is_secure(), started_here, realtime, library, site, settings->version,
             (unsigned long long)(uintptr_t)start);
    const char *threads = getenv("OPENBLAS_NUM_THREADS");
    if (threads == NULL)
        setenv("OPENBLAS_NUM_THREADS", "1", 0); /* numpy's own threads would only be in the way; read once, when numpy is loaded */
    python.run(code);
    if (threads == NULL)
        unsetenv("OPENBLAS_NUM_THREADS");
    return start->ready != 0;
}

/* The program is Python, or something else in it has started one. */
static int use_running(anynpu_start *start, const struct anynpu_settings *settings)
{
    int state = python.ensure();
    int ready = fill_table(start, settings);
    python.release(state);
    return ready;
}

static int load_library(const struct anynpu_settings *settings)
{
    if (settings->python[0] == '\0') {
        anynpu_complain("no Python found for this library; set ANYNPU_PYTHON to the python of the environment that has anynpu");
        return 0;
    }
    if (settings->version[0] == '\0') {
        anynpu_complain("%s is missing, or is not a Python; set ANYNPU_PYTHON to that of the environment that has anynpu", settings->python);
        return 0;
    }
    void *library = dlopen(settings->libpython, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        anynpu_complain("cannot load Python %s: %s; install it as a shared library, or set ANYNPU_LIBPYTHON", settings->version, dlerror());
        return 0;
    }
    if (!bind(library)) {
        anynpu_complain("%s is not a Python that this library knows", settings->libpython);
        return 0;
    }
    return 1;
}

/* As `python -I` does: no variables, no folder of the user, no folder of the program. 0 if this Python has no such flags. */
static int isolate(void)
{
    static const char *const flags[] = {"Py_IsolatedFlag", "Py_IgnoreEnvironmentFlag", "Py_NoUserSiteDirectory"};
    int missing = 0;
    for (size_t index = 0; index < sizeof flags / sizeof *flags; index++) {
        int *flag = look_up(RTLD_DEFAULT, flags[index], &missing);
        if (flag != NULL)
            *flag = 1;
    }
    return !missing;
}

static int start_new(anynpu_start *start, const struct anynpu_settings *settings)
{
    if (python.set_program_name == NULL) {
        anynpu_complain("this library starts Python 3.10 to 3.14; that of %s is another", settings->python);
        return 0;
    }
    size_t length = strlen(settings->version);
    if (strncmp(python.version(), settings->version, length) != 0 || python.version()[length] != '.') {
        anynpu_complain("the program brings Python %.6s, anynpu is installed for %s; install it for the program's", python.version(),
                        settings->version);
        return 0;
    }
    if (!anynpu_has_standard_library(settings)) {
        anynpu_complain("the Python of %s has no standard library; repair or remake that environment", settings->python);
        return 0;
    }
    char locale[256] = "";
    const char *now = setlocale(LC_CTYPE, NULL);
    if (now != NULL)
        snprintf(locale, sizeof locale, "%s", now);
    if (anynpu_is_secure() && !isolate()) {
        anynpu_complain("this Python cannot be kept from the environment, which this program must not trust");
        return 0;
    }
    python.set_program_name(python.decode_locale(settings->python, NULL));
    python.initialize(0);
    if (locale[0] != '\0')
        setlocale(LC_CTYPE, locale);
    started_here = 1;
    int ready = fill_table(start, settings);
    python.save_thread();
    return ready;
}

int anynpu_start_python(anynpu_start *start)
{
    static struct anynpu_settings settings;
    anynpu_find_settings(&settings);
    const char *untrusted = anynpu_untrusted_setting(&settings);
    if (untrusted != NULL) {
        anynpu_complain("this program has more rights than its caller, and others than root can change %s", untrusted);
        return 0;
    }
    int bound = bind(RTLD_DEFAULT);
    if (bound && python.is_initialized())
        return use_running(start, &settings);
    if (!bound && !load_library(&settings))
        return 0;
    if (python.is_initialized()) /* it was loaded where names are not looked for */
        return use_running(start, &settings);
    return start_new(start, &settings);
}

/* Not by what is bound: that is written while other threads come here to wait for it. */
void *anynpu_release_python(void)
{
    int missing = 0;
    int (*is_initialized)(void), (*holds_lock)(void);
    void *(*save_thread)(void);
    *(void **)(&is_initialized) = look_up(RTLD_DEFAULT, "Py_IsInitialized", &missing);
    *(void **)(&holds_lock) = look_up(RTLD_DEFAULT, "PyGILState_Check", &missing);
    *(void **)(&save_thread) = look_up(RTLD_DEFAULT, "PyEval_SaveThread", &missing);
    return !missing && is_initialized() && holds_lock() ? save_thread() : NULL;
}

void anynpu_resume_python(void *state)
{
    if (state == NULL)
        return;
    int missing = 0;
    void (*restore_thread)(void *);
    *(void **)(&restore_thread) = look_up(RTLD_DEFAULT, "PyEval_RestoreThread", &missing);
    restore_thread(state);
}

/* Where the program is Python, os.fork() does all this itself. */
void anynpu_before_fork(void)
{
    if (!started_here)
        return;
    fork_state = python.ensure();
    python.before_fork();
}

void anynpu_after_fork_parent(void)
{
    if (!started_here)
        return;
    python.after_fork_parent();
    python.release(fork_state);
}

void anynpu_after_fork_child(void)
{
    if (!started_here)
        return;
    python.after_fork_child();
    /* The thread that forked is the only one that Python still knows here. It must not forget that as well: some versions cannot make a
     * first thread twice. */
    if (fork_state == WAS_WITHOUT_LOCK)
        python.save_thread();
    else
        python.release(fork_state);
}
