"""Every option: default, spelling, alias, rejection."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from anynpu.errors import AnynpuError, OptionError
from anynpu.session import LayoutLike, RknnProviderOptions, TpModeLike, make_provider_options, make_rknpu3_provider_options
from anynpu.session.options import parse_options

from .fake import FakeDevice


def parsed(**options: Any) -> Any:
    return parse_options(None, options)


def test_defaults_are_the_documented_ones() -> None:
    options = parse_options(None, None)
    assert (options.layout, options.zero_copy_layout) == ("nchw", "nhwc")
    assert (options.max_queue_size, options.threads_per_core, options.submit_timeout_ms) == (3, 1, 10000)
    assert options.sequential_callbacks is True
    assert options.schedule is None
    assert options.tp_mode is None
    assert options.enable_pacing is options.disable_dup_context is False
    assert options.custom_op_paths == ()
    assert options.custom_op_folder == ""
    assert options == parse_options([], make_provider_options())


def test_the_helper_gives_every_default_and_leaves_out_what_was_not_set() -> None:
    assert make_provider_options() == {
        "layout": "original",
        "zero_copy_layout": "nhwc",
        "max_queue_size": 3,
        "threads_per_core": 1,
        "submit_timeout_ms": 10000,
        "sequential_callbacks": True,
        "enable_pacing": False,
        "disable_dup_context": False,
        "custom_op_default_path": False,
    }
    assert make_provider_options(schedule=[0, 1])["schedule"] == [0, 1]
    assert make_provider_options(tp_mode="0,1")["tp_mode"] == "0,1"
    assert make_provider_options(custom_op_paths="a.so")["custom_op_paths"] == "a.so"


def test_the_helper_takes_keywords_only_and_refuses_both_modes_with_a_value_error() -> None:
    with pytest.raises(TypeError):
        make_provider_options("nchw")  # type: ignore[misc]
    with pytest.raises(ValueError, match="tp_mode conflicts with schedule; set only one"):
        make_provider_options(schedule=[0], tp_mode="auto")
    with pytest.raises(RuntimeError, match="tp_mode conflicts with schedule"):
        parsed(schedule=[0], tp_mode="auto")


def test_both_aliases_of_plugins_are_accepted_and_merged() -> None:
    options = parsed(custom_op_paths=["a.so", Path("b.so")], custom_op_path="c.so")
    assert options.custom_op_paths == ("a.so", "b.so", "c.so")
    assert parsed(load_custom_ops_from_default_path=True).custom_op_folder
    assert parsed(custom_op_default_path=True).custom_op_folder
    assert parsed(custom_op_default_path=False, load_custom_ops_from_default_path="yes").custom_op_folder


def test_the_typed_dict_declares_exactly_the_accepted_keys() -> None:
    with pytest.raises(OptionError) as caught:
        parsed(shedule=[0])
    assert "did you mean 'schedule'?" in caught.value.hint
    first = str(caught.value).splitlines()[0]
    assert first.split("keys are ")[1].split(", ") == sorted(RknnProviderOptions.__annotations__)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("nchw", "nchw"),
        ("original", "nchw"),
        ("NCHW", "nchw"),
        ("nchw_software", "nchw_software"),
        ("original_software", "nchw_software"),
        ("nhwc", "nhwc"),
        ("Any", "any"),
    ],
)
def test_layouts(given: str, meant: str) -> None:
    assert parsed(layout=given).layout == meant
    assert given.lower() in get_args(LayoutLike)


@pytest.mark.parametrize("mode", get_args(TpModeLike))
def test_tensor_parallel_modes(mode: str) -> None:
    masks = {"auto": 0, "all": 0xFFFF, "0": 1, "1": 2, "2": 4, "0,1": 3, "0,1,2": 7}
    assert parsed(tp_mode=mode).tp_mask == masks[mode]


@pytest.mark.parametrize(
    ("given", "meant"),
    [(0, (0,)), ("0,1,2", (0, 1, 2)), ("[0, 1,2]", (0, 1, 2)), ([0, 0, 1], (0, 0, 1)), ((2,), (2,)), ("1", (1,))],
)
def test_schedules(given: Any, meant: tuple[int, ...]) -> None:
    assert parsed(schedule=given).schedule == meant


@pytest.mark.parametrize("given", [True, 1, "1", "true", "On", "YES"])
def test_flags_that_are_true(given: Any) -> None:
    assert parsed(enable_pacing=given).enable_pacing is True


@pytest.mark.parametrize("given", [False, 0, "0", "false", "Off", "no"])
def test_flags_that_are_false(given: Any) -> None:
    assert parsed(sequential_callbacks=given).sequential_callbacks is False


@pytest.mark.parametrize("key", ["max_queue_size", "threads_per_core", "submit_timeout_ms", "watchdog_ms"])
def test_numbers_must_be_positive(key: str) -> None:
    assert getattr(parsed(**{key: 7}), key) == 7
    assert getattr(parsed(**{key: "7"}), key) == 7
    for wrong in (0, -1, "-1", "x", 1.5, True, [1]):
        with pytest.raises(OptionError, match=key):
            parsed(**{key: wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"layout": "nwhc"},
        {"layout": 3},
        {"zero_copy_layout": "nchw"},
        {"tp_mode": "0,2"},
        {"tp_mode": "ALL"},
        {"tp_mode": ""},
        {"tp_mode": 0},
        {"schedule": "0,x"},
        {"schedule": []},
        {"schedule": ""},
        {"schedule": [-1]},
        {"schedule": [0.5]},
        {"enable_pacing": "maybe"},
        {"enable_pacing": 2},
        {"custom_op_paths": 3},
        {"custom_op_paths": ["a.so", 3]},
        {"output_type": "complex64"},
        {"output_type": "no such type"},
    ],
)
def test_nonsense_is_rejected_by_the_session_as_by_the_peers(wrong: dict[str, Any]) -> None:
    (key,) = wrong
    with pytest.raises(OptionError) as caught:
        parsed(**wrong)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AnynpuError)
    assert key in str(caught.value)
    assert caught.value.hint
    assert make_provider_options(**wrong)[key] == wrong[key]  # type: ignore[literal-required]


def test_rknpu3_options_are_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="RKNPU3 chips are not supported"):
        make_rknpu3_provider_options(priority=0)


def test_what_providers_may_be() -> None:
    name = "RKNPU2ExecutionProvider"
    for providers in (None, [], name, [name], (name,), [(name, {})], ["RKNNExecutionProvider"]):
        assert parse_options(providers, None).max_queue_size == 3
    assert parse_options([(name, {"max_queue_size": 5})], None).max_queue_size == 5
    assert parse_options(name, None).family == "rknn"
    for wrong, text in (
        ([name, name], "exactly one"),
        ("CPUExecutionProvider", "^Unsupported execution provider"),
        (7, "must be a name"),
        ([(name, 3)], "not a dict"),
    ):
        with pytest.raises(OptionError, match=text):
            parse_options(wrong, None)
    with pytest.raises(OptionError, match="given twice"):
        parse_options([(name, {"layout": "nhwc"})], {"layout": "nhwc"})


def test_what_provider_options_may_be() -> None:
    assert parse_options(None, {"max_queue_size": 4}).max_queue_size == 4
    assert parse_options(None, [{"max_queue_size": 4}, "whatever"]).max_queue_size == 4
    assert parse_options(None, []).max_queue_size == 3
    for wrong in ("nchw", 3, ["nchw"]):
        with pytest.raises(OptionError, match="must be a dict or a sequence whose first item is a dict"):
            parse_options(None, wrong)


def test_a_session_tells_its_options() -> None:
    with FakeDevice(3).open(schedule="0,2", max_queue_size="5") as session:
        ((provider, options),) = session.get_provider_options().items()
        assert [provider] == session.get_providers()
        assert options == {"schedule": "0,2", "max_queue_size": "5"}
        assert (session.options.schedule, session.options.max_queue_size, session.options.threads_per_core) == ((0, 2), 5, 1)
        options["schedule"] = "1"
        assert session.get_provider_options()[provider]["schedule"] == "0,2"
    with FakeDevice(3).open() as session:
        assert session.get_provider_options() == {provider: {}}
        assert session.options.tp_mode is None


@pytest.mark.parametrize(
    ("options", "cores"),
    [
        ({"schedule": [0, 1]}, 1),
        ({"schedule": [40]}, 3),
        ({"tp_mode": "0,1"}, 1),
        ({"tp_mode": "2"}, 2),
        ({"tp_mode": "0,1,2"}, 2),
    ],
)
def test_cores_that_the_chip_lacks_are_a_clear_error_and_leave_nothing_open(options: dict[str, Any], cores: int) -> None:
    device = FakeDevice(cores)
    with pytest.raises(OptionError, match=rf"fake{cores}") as caught:
        device.open(**options)
    assert isinstance(caught.value, RuntimeError)
    assert device.open_lanes == device.open_backends == 0


@pytest.mark.parametrize("options", [{"schedule": [0]}, {"tp_mode": "auto"}, {"tp_mode": "0"}, {}])
def test_core_0_is_always_possible(options: dict[str, Any]) -> None:
    device = FakeDevice(1)
    with device.open(**options) as session:
        session.run(None, [[[1, 2, 3, 4]]])
    assert device.open_lanes == 0
