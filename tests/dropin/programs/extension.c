/* A Python module in C that calls the library and keeps Python's lock meanwhile, as careless modules do. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rknn_api.h"

static PyObject *infer(PyObject *self, PyObject *argument)
{
    (void)self;
    const char *path = PyUnicode_AsUTF8(argument);
    rknn_context context = 0;
    if (path == NULL)
        return NULL;
    int code = rknn_init(&context, (void *)(uintptr_t)path, 0, 0, NULL);
    if (code == 0)
        code = rknn_destroy(context);
    return PyLong_FromLong(code);
}

static PyMethodDef methods[] = {{"infer", infer, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "careless", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_careless(void);

PyMODINIT_FUNC PyInit_careless(void)
{
    return PyModule_Create(&module);
}
