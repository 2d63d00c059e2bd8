"""Raw contents on the wire: the same messages as protobuf's own, and broken ones left to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anynpu.session.protocol.messages import (
    MAX_FIELDS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    STREAMED_ANSWER,
    field_of,
    join_contents,
    messages,
    split_contents,
)

STEADY = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
"""The same examples in each run, however long one of them takes."""


def a_request(contents: list[bytes]) -> bytes:
    request = messages().ModelInferRequest(model_name="net", id="7", raw_input_contents=contents)
    request.inputs.add(name="x", datatype="UINT8", shape=[2, 300])
    request.parameters["timeout"].int64_param = 2**40
    request.parameters["share"].double_param = 0.5
    data: bytes = request.SerializeToString()
    return data


@STEADY
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_split_and_protobuf_agree(contents: list[bytes]) -> None:
    data = a_request(contents)
    rest, found = split_contents(data, RAW_INPUTS)
    assert [bytes(one) for one in found] == contents
    assert messages().ModelInferRequest.FromString(rest) == messages().ModelInferRequest.FromString(a_request([]))
    if not contents:
        assert rest is data


def test_contents_may_lie_between_other_fields() -> None:
    head = messages().ModelInferRequest(model_name="net").SerializeToString()
    tail = messages().ModelInferRequest(id="9").SerializeToString()
    rest, found = split_contents(field_of(7, b"first") + head + field_of(7, b"") + tail + field_of(7, b"last"), RAW_INPUTS)
    assert (rest, [bytes(one) for one in found]) == (head + tail, [b"first", b"", b"last"])


@settings(STEADY, max_examples=400)
@given(st.data())
def test_broken_messages_come_back_whole_or_as_protobuf_reads_them(data: st.DataObject) -> None:
    message = bytearray(a_request([b"abc" * 50, b"d"]))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(message[: data.draw(st.integers(0, len(message)))])
    rest, found = split_contents(broken, RAW_INPUTS)
    error = None
    try:
        whole = messages().ModelInferRequest.FromString(broken)
    except Exception as caught:  # protobuf's own class has no public name
        error = caught
    if error is not None:
        with pytest.raises(type(error)):
            messages().ModelInferRequest.FromString(rest)
        return
    left = messages().ModelInferRequest.FromString(rest)
    contents = [bytes(one) for one in found] or list(left.raw_input_contents)
    assert contents == list(whole.raw_input_contents)
    whole.ClearField("raw_input_contents")
    left.ClearField("raw_input_contents")
    assert left.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def test_many_fields_are_left_to_protobuf() -> None:
    data = field_of(7, b"a") * (MAX_FIELDS + 1)
    assert split_contents(data, RAW_INPUTS) == (data, [])


def test_join_writes_what_protobuf_reads() -> None:
    arrays = [
        np.arange(200, dtype=np.float32).reshape(4, 50),
        np.arange(24, dtype=">i4").reshape(2, 12)[:, ::2],
        np.zeros((0, 3), np.uint8),
        np.array(True),
    ]
    answer = messages().ModelInferResponse(model_name="net")
    data = join_contents(answer.SerializeToString(), RAW_OUTPUTS, arrays)
    read = messages().ModelInferResponse.FromString(data)
    assert read.model_name == "net"
    assert list(read.raw_output_contents) == [np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays]
    streamed = messages().ModelStreamInferResponse.FromString(field_of(STREAMED_ANSWER, data))
    assert streamed.infer_response == read
