"""A package as a Core AI bundle: metadata, tokenizer and asset, as Apple's coreai-models has it."""

import json
import shutil
from pathlib import Path

from coremltools.models import MLModel

from .core_ai import translated
from .evaluate import Package
from .package import METADATA, save

LAYOUT_VERSION = "0.2"


def asset_of(bundle: Path) -> Path:
    """The asset in a bundle."""
    return bundle / json.loads((bundle / "metadata.json").read_text())["assets"]["main"]


def write_bundle(model: MLModel, place: Path, name: str) -> None:
    """Write a bundle; its tokenizer is left to the caller.

    Args:
        model: from ``PackageBuilder.model``.
        place: an empty directory.
        name: of the bundle.
    """
    package = place / f"{name}.mlpackage"
    save(model, package)
    translated(Package(package, "fp16")).save_asset(place / f"{name}.aimodel")
    shutil.rmtree(package)
    said = json.loads(model.user_defined_metadata[METADATA])
    metadata = {
        "metadata_version": LAYOUT_VERSION,
        "kind": "llm",
        "name": name,
        "assets": {"main": f"{name}.aimodel"},
        "language": {
            "tokenizer": said["base"]["name"],
            "vocab_size": said["base"]["vocab_size"],
            "max_context_length": said["sizes"]["context"],
            "embedded_tokenizer": True,
        },
        "user_data": {METADATA: model.user_defined_metadata[METADATA]},
    }
    (place / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
