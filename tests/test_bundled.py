"""What comes with the package: streams and adapters that fit the demonstration model's base.

What needs the base's weights is skipped where they are not installed; see ``demonstration``.
"""

import json

import pytest
from demonstration_weights import needs_weights
from mlx.utils import tree_flatten
from mlx_lm import load as load_plain
from specstream_mlx.convert.demo_model import tasks, train_adapters

from specstream_mlx import bundled, demonstration, load
from specstream_mlx.adapters.description import describe

ADAPTERS = bundled.adapter_names()
if not ADAPTERS:
    pytest.skip("no streams and adapters are bundled yet", allow_module_level=True)
DIRECTORIES = [bundled.streams_path(), *map(bundled.adapter_path, ADAPTERS)]


def test_the_bundle_is_small_and_has_an_adapter_for_every_task():
    assert set(ADAPTERS) == set(tasks.TASKS)
    size_of = train_adapters.size_of
    assert size_of(bundled.streams_path()) <= train_adapters.MOST_STREAM_BYTES
    for name in ADAPTERS:
        assert size_of(bundled.adapter_path(name)) <= train_adapters.MOST_ADAPTER_BYTES


@pytest.mark.parametrize("path", DIRECTORIES, ids=lambda path: path.name)
def test_what_an_adapter_says_of_itself(path):
    config = describe(path).stream_config
    assert config.base_model == demonstration.REPOSITORY
    if path.name == "streams":
        assert config.mode == "lossless"
    else:
        assert config.prompt_template == tasks.prompt_template(path.name)
    values = [v for _, v in tree_flatten(json.loads((path / "adapter_config.json").read_text()))]
    assert not [value for value in values if isinstance(value, str) and value.startswith("/")]


@needs_weights
def test_all_fit_the_base_and_leave_it_as_it_is_and_mlx_lm_loads_the_lora():
    model, _ = load(demonstration.base_path())
    assert bundled.streams_for(model.config) == bundled.streams_path()
    assert bundled.streams_for(model.config | {"num_hidden_layers": 29}) is None
    before = set(dict(tree_flatten(model.model.parameters())))
    for path in DIRECTORIES:
        model.swap_adapter(path)
    model.swap_adapter(None)
    assert set(dict(tree_flatten(model.model.parameters()))) == before
    adapter = bundled.adapter_path(ADAPTERS[0])
    plain, _ = load_plain(str(demonstration.base_path()), adapter_path=str(adapter))
    assert [key for key, _ in tree_flatten(plain.parameters()) if "lora" in key]
