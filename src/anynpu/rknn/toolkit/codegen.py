"""``codegen``: a C program that runs a model on its inputs, with all that is needed to build it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ... import modelfile
from ..._util.types import Array
from ...compiler.quantize.dataset import InputInfo, open_dataset
from ...errors import ParameterError
from ...modelfile import CompiledModel
from ...program import Model

__all__ = ["generate"]

_PROGRAM = """\
/* Runs model.rknn on the files in inputs/ and writes what it gives to outputs/. Written by RKNN.codegen. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rknn_api.h"

#define INPUTS @INPUTS@
#define OUTPUTS @OUTPUTS@

static const struct {
    const char *path;
    uint32_t size;
    rknn_tensor_type type;
    rknn_tensor_format format;
} given[INPUTS] = {
@TABLE@};

static void *read_file(const char *path, uint32_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s cannot be opened\\n", path);
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = malloc(length > 0 ? (size_t)length : 1);
    if (data != NULL && fread(data, 1, (size_t)length, file) != (size_t)length) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *size = (uint32_t)length;
    return data;
}

static int write_output(uint32_t index, const rknn_output *output, const rknn_tensor_attr *attr)
{
    char path[64];
    snprintf(path, sizeof path, "outputs/output_%u.bin", index);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(output->buf, 1, output->size, file) != output->size || fclose(file) != 0) {
        fprintf(stderr, "%s cannot be written\\n", path);
        return -1;
    }
    printf("%s %s [", path, attr->name);
    for (uint32_t axis = 0; axis < attr->n_dims; axis++)
        printf("%s%u", axis ? "," : "", attr->dims[axis]);
    printf("] float32\\n");
    return 0;
}

int main(int argc, char **argv)
{
    rknn_context context = 0;
    rknn_input inputs[INPUTS];
    rknn_output outputs[OUTPUTS];
    uint32_t size = 0;
    void *model = read_file(argc > 1 ? argv[1] : "model.rknn", &size);
    if (model == NULL)
        return 1;
    int code = rknn_init(&context, model, size, 0, NULL);
    free(model);
    if (code < 0) {
        fprintf(stderr, "rknn_init: %d\\n", code);
        return 1;
    }
    memset(inputs, 0, sizeof inputs);
    memset(outputs, 0, sizeof outputs);
    for (uint32_t index = 0; index < INPUTS; index++) {
        inputs[index].index = index;
        inputs[index].buf = read_file(given[index].path, &inputs[index].size);
        inputs[index].type = given[index].type;
        inputs[index].fmt = given[index].format;
        if (inputs[index].buf == NULL || inputs[index].size != given[index].size) {
            fprintf(stderr, "%s does not have %u bytes\\n", given[index].path, given[index].size);
            return 1;
        }
    }
    for (uint32_t index = 0; index < OUTPUTS; index++) {
        outputs[index].index = index;
        outputs[index].want_float = 1;
    }
    code = rknn_inputs_set(context, INPUTS, inputs);
    if (code >= 0)
        code = rknn_run(context, NULL);
    if (code >= 0)
        code = rknn_outputs_get(context, OUTPUTS, outputs, NULL);
    if (code < 0) {
        fprintf(stderr, "the model cannot be run: %d\\n", code);
        return 1;
    }
    for (uint32_t index = 0; index < OUTPUTS; index++) {
        rknn_tensor_attr attr;
        memset(&attr, 0, sizeof attr);
        attr.index = index;
        if (rknn_query(context, RKNN_QUERY_OUTPUT_ATTR, &attr, sizeof attr) < 0 || write_output(index, &outputs[index], &attr) < 0)
            return 1;
    }
    rknn_outputs_release(context, OUTPUTS, outputs);
    for (uint32_t index = 0; index < INPUTS; index++)
        free(inputs[index].buf);
    return rknn_destroy(context) < 0;
}
"""

_MAKEFILE = """\
# On a board: make. Elsewhere, with anynpu: make INCLUDE=`anynpu lib --include` LIB=`anynpu lib --path`
CC ?= cc
INCLUDE ?= /usr/include
LIB ?= /usr/lib

run: main.c
\t$(CC) -O2 -Wall -o $@ main.c -I$(INCLUDE) -L$(LIB) -l@LIBRARY@
"""

_TYPES = {
    "uint8": "RKNN_TENSOR_UINT8",
    "float32": "RKNN_TENSOR_FLOAT32",
    "int64": "RKNN_TENSOR_INT64",
    "bool": "RKNN_TENSOR_BOOL",
}


def generate(model: CompiledModel, folder: Path, inputs: Sequence[object] | None, library: str, *, overwrite: bool) -> None:
    """Write the program, the model and its inputs.

    :param inputs: a file or an array for each input; zeros, if not given
    :param library: what the program is linked with, such as rknnrt
    """
    if folder.exists() and not overwrite:
        raise ParameterError(f"{folder} is there already", hint="pass overwrite=True, or another path")
    arrays = _arrays(model, inputs)
    for part in ("inputs", "outputs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rows = []
    for index, (array, spec) in enumerate(zip(arrays, model.inputs, strict=True)):
        (folder / "inputs" / f"input_{index}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
        layout = "RKNN_TENSOR_NHWC" if len(spec.shape) == 4 else "RKNN_TENSOR_UNDEFINED"
        rows.append(f'    {{"inputs/input_{index}.bin", {array.nbytes}u, {_TYPES[array.dtype.name]}, {layout}}},\n')
    program = _PROGRAM.replace("@INPUTS@", str(len(arrays))).replace("@OUTPUTS@", str(len(model.outputs)))
    (folder / "main.c").write_text(program.replace("@TABLE@", "".join(rows)), encoding="utf-8")
    (folder / "Makefile").write_text(_MAKEFILE.replace("@LIBRARY@", library), encoding="utf-8")
    modelfile.write(model, folder / "model.rknn")


def _arrays(model: Model, inputs: Sequence[object] | None) -> list[Array]:
    """The inputs as the program feeds them: pictures as N, H, W, C, bytes where they are bytes."""
    if inputs is None:
        return [np.zeros(math.prod(spec.shape), _kind(model, spec.name)) for spec in model.inputs]
    infos = [InputInfo(spec.name, spec.shape, np.dtype(_kind(model, spec.name))) for spec in model.inputs]
    infos = [InputInfo(info.name, info.shape, np.dtype(np.float32)) if info.dtype == np.uint8 else info for info in infos]
    (sample,) = open_dataset([tuple(inputs)], infos, limit=1)
    arrays = []
    for spec in model.inputs:
        value = sample[spec.name]
        if len(spec.shape) == 4:
            value = value.transpose(0, 2, 3, 1)
        kind = _kind(model, spec.name)
        if kind == "uint8" and not np.array_equal(value, np.clip(np.rint(value), 0, 255)):
            kind = "float32"
        arrays.append(np.ascontiguousarray(value).astype(kind))
    return arrays


def _kind(model: Model, name: str) -> str:
    """The type that an input is fed in."""
    spec = next(spec for spec in model.inputs if spec.name == name)
    if name in model.preprocess:
        return "uint8"
    storage = spec.dtype.storage.name
    return storage if storage in ("int64", "bool") else "float32"
