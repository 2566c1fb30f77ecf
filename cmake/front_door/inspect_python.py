"""Prints, as lines NAME=VALUE, what the Python that runs it offers to Headroom.

A value of several lines is several lines with its name (read_values in own_environment.sh).

It imports neither PyTorch nor any other package: that would take seconds, and a broken package must not break
set-up.

    inspect_python.py TOOLS.txt
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys


def package_folder(name):
    spec = importlib.util.find_spec(name)
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def torch_facts():
    """Folder, version, CUDA version and, when it cannot be used, why."""
    folder = package_folder("torch")
    version_file = os.path.join(folder, "version.py") if folder else ""
    if not os.path.exists(version_file):
        return "", "", "", "it has no PyTorch"
    facts = {}
    with open(version_file) as source:
        exec(source.read(), facts)
    version, cuda = str(facts["__version__"]), facts.get("cuda") or ""
    config = os.path.join(folder, "share", "cmake", "Torch", "TorchConfig.cmake")
    problem = ""
    if numbers(version) < [2, 6]:
        problem = f"its PyTorch {version} is older than 2.6"
    elif not cuda:
        problem = f"its PyTorch {version} has no CUDA build"
    elif not os.path.exists(config):
        problem = f"its PyTorch {version} has no CMake files"
    elif "_GLIBCXX_USE_CXX11_ABI=0" in open(config).read():
        problem = f"its PyTorch {version} uses the C++ interface from before C++11"
    return folder, version, cuda, problem


def jax_facts():
    """JAX's version, if it is new enough to be used, and whether it has its CUDA part."""
    version = version_of("jax")
    plugins = [version_of(f"jax-cuda{major}-plugin") for major in (12, 13)]
    return version if numbers(version) >= [0, 6] else "", "yes" if any(plugins) else ""


def library_folders(torch_folder):
    """torch/lib and the nvidia packages beside it: where a program linked to LibTorch finds its libraries."""
    folders = [os.path.join(torch_folder, "lib")] if torch_folder else []
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations if spec else []:
        for name in sorted(os.listdir(base)):
            folders.append(os.path.join(base, name, "lib"))
    return [folder for folder in folders if os.path.isdir(folder)]


def program_version(name):
    """The version of a program beside this Python or on PATH, or nothing."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    path = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if not path:
        return []
    out = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+(\.\d+)?", out)
    return numbers(found.group()) if found else []


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_missing(requirement):
    """Libraries and build tools may be any recent version; formatters must be the pinned one."""
    name, version = re.match(r"([\w-]+)==([\w.]+)", requirement).groups()
    if name in ("clang-format", "ruff"):
        return program_version(name) != numbers(version)
    if name == "cmake":
        return program_version(name) < [3, 28]
    if name == "ninja":
        return not program_version(name)
    return not version_of(name)


def applies(line):
    marker = re.search(r'python_version (>=|<) "3\.(\d+)"', line)
    return not marker or (sys.version_info.minor >= int(marker.group(2))) == (marker.group(1) == ">=")


def main():
    with open(sys.argv[1]) as tools:
        wanted = [line.strip() for line in tools if line.strip() and applies(line)]
    folder, version, cuda, problem = torch_facts()
    jax, jax_cuda = jax_facts()
    print_values(
        base_executable=os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
        base_version="{}.{}.{}".format(*sys.version_info[:3]),
        base_is_new_enough="yes" if sys.version_info >= (3, 10) else "",
        base_draws_reports="yes" if all(map(package_folder, ("matplotlib", "jinja2", "jsonschema"))) else "",
        base_sites="\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))),
        torch_folder=folder,
        torch_version=version,
        torch_cuda=cuda,
        torch_problem=problem,
        torch_library_path=":".join(library_folders(folder)),
        base_jax_version=jax,
        base_jax_cuda=jax_cuda,
        missing_tools="\n".join(line for line in wanted if is_missing(line)),
    )


def print_values(**values):
    for name, value in values.items():
        for line in value.splitlines():
            print(f"{name}={line}")


main()
