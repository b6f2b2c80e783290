"""Images that a benchmark builds for itself."""

import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parents[1]


def build(folder):
    subprocess.run([ROOT / "target/release/transship", "build", folder], check=True, capture_output=True)


def build_variant(name, replicas, pause=False):
    """The functions of bench/overhead as image name:1.0, of which so many replicas are kept running."""
    folder = pathlib.Path(tempfile.mkdtemp())
    source = ROOT / "bench/overhead/image"
    shutil.copytree(source, folder, dirs_exist_ok=True)
    manifest = (source / "transship.toml").read_text()
    for key, value in {"name": f'"{name}"', "replicas": replicas, "prewarm": f"{replicas}\npause = {str(pause).lower()}"}.items():
        manifest = re.sub(rf"(?m)^{key} = .*", f"{key} = {value}", manifest, count=1)
    (folder / "transship.toml").write_text(manifest)
    build(folder)
    shutil.rmtree(folder)
