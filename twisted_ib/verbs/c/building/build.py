"""
Building the shared objects, once for each interpreter: they are kept in the user's cache directory.

The symbols of rdma-core's libraries that have nothing behind them here each library has as stubs.  Providers
and old programs import them: some load a library by C{dlopen(3)} and never start under C{ib-run}, which would
add what is missing.  Source: C{libibverbs/libibverbs.map.in} of rdma-core 44 and 56.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building.cache import built, compileIn, compilerRun
from twisted_ib.verbs.c.building.source import (
    exportedFunctions,
    handlerDeclarations,
    pointerDeclarations,
    versionScript,
)
from twisted_ib.verbs.c.building.stubs import Symbol
from twisted_ib.verbs.c.building.stubs import source as stubSource
from twisted_ib.verbs.c.cm import declarations as cm
from twisted_ib.verbs.c.cm.declarations import TABLE as CM
from twisted_ib.verbs.c.functions import Row
from twisted_ib.verbs.c.kept import (
    CARRIED,
    ORIGIN,
    PYTHON,
    ROOT,
    SONAMES,
    VIEW,
    checkOwners,
    isCarried,
    isKept,
    keptFolder,
    origin,
    packagePath,
    sharedPython,
)
from twisted_ib.verbs.c.umad import declarations as umad
from twisted_ib.verbs.c.umad.declarations import TABLE as UMAD
from twisted_ib.verbs.c.verbs import declarations as verbs
from twisted_ib.verbs.c.verbs.table import TABLE as VERBS

_VERBS = "libibverbs.so.1"
#: The version of what libibverbs shares with its providers, in rdma-core 15 to 56.
_PRIVATE = "IBVERBS_PRIVATE_34"
#: C{ibv_cmd_*}: commands for the kernel.
_COMMANDS = """
    advise_mr alloc_dm alloc_mw alloc_pd attach_mcast close_xrcd create_ah create_counters create_cq
    create_cq_ex create_cq_ex2 create_flow create_flow_action_esp create_qp create_qp_ex create_qp_ex2
    create_rwq_ind_table create_srq create_srq_ex create_wq dealloc_mw dealloc_pd dereg_mr destroy_ah
    destroy_counters destroy_cq destroy_flow destroy_flow_action destroy_qp destroy_rwq_ind_table
    destroy_srq destroy_wq detach_mcast free_dm get_context modify_cq modify_flow_action_esp modify_qp
    modify_qp_ex modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send post_srq_recv
    query_context query_device_any query_mr query_port query_qp query_srq read_counters reg_dm_mr
    reg_dmabuf_mr reg_mr req_notify_cq rereg_mr resize_cq
""".split()
#: Others that are for providers.
_PROVIDERS = """
    __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl
    ibv_read_ibdev_sysfs_file verbs_init_cq verbs_open_device verbs_register_driver_34 verbs_set_ops
    verbs_uninit_context
""".split()
#: C{ibv_*} as of libibverbs 1.0, whose structures were others.
_FIRST = """
    ack_async_event ack_cq_events alloc_pd attach_mcast close_device create_ah create_cq create_qp
    create_srq dealloc_pd dereg_mr destroy_ah destroy_cq destroy_qp destroy_srq detach_mcast
    free_device_list get_async_event get_cq_event get_device_guid get_device_list get_device_name
    modify_qp modify_srq open_device query_device query_gid query_pkey query_port query_qp query_srq
    reg_mr resize_cq
""".split()
#: Functions that librdmacm took from libibverbs.
_KERNEL = """
    ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
""".split()

#: All of them.
STUBS = (
    *(Symbol(_VERBS, _PRIVATE, f"ibv_cmd_{name}") for name in _COMMANDS),
    *(Symbol(_VERBS, _PRIVATE, name) for name in (*_PROVIDERS, "ibv_wr_opcode_str")),
    Symbol(_VERBS, _PRIVATE, "verbs_allow_disassociate_destroy", isData=True),
    *(Symbol(_VERBS, "IBVERBS_1.0", f"ibv_{name}") for name in _FIRST),
    *(Symbol(_VERBS, "IBVERBS_1.0", name) for name in _KERNEL),
    *(Symbol(_VERBS, "IBVERBS_1.1", name) for name in ("ibv_copy_ah_attr_from_kern", "ibv_register_driver")),
)

_INTERPRETER = Path(__file__).with_name("interpreter.c")
_VIEW = Path(__file__).with_name("view.c")


@attrs.frozen
class Library:
    """
    One shared object.

    @ivar folder: its folder in this package, C{verbs} for libibverbs.
    @ivar table: its functions.
    @ivar declarations: of structures, for cffi.
    @ivar source: C that includes the headers.
    @ivar headers: what C{source} includes.
    @ivar package: Debian's package with them.
    """

    folder: str
    table: tuple[Row, ...]
    declarations: str
    source: str
    headers: tuple[str, ...]
    package: str

    @property
    def soname(self) -> str:
        """
        Its name for the loader.
        """
        return SONAMES[self.folder]

    @property
    def module(self) -> str:
        """
        The name of the extension module that it is, too.
        """
        return f"_twisted_ib_{self.folder}"


#: All of them.
LIBRARIES = (
    Library("verbs", VERBS, verbs.DECLARATIONS, verbs.SOURCE, verbs.HEADERS, verbs.PACKAGE),
    Library("cm", CM, cm.DECLARATIONS, cm.SOURCE, cm.HEADERS, cm.PACKAGE),
    Library("umad", UMAD, umad.DECLARATIONS, umad.SOURCE, umad.HEADERS, umad.PACKAGE),
)


def startCode() -> str:
    """
    @return: the code that the interpreter of a program runs first: it extends the path, and finds this
        package where it is, whatever the program's path has.
    """
    # Only ASCII: it is read before Python knows the encoding of the program's files.
    return f"""\
import sys
sys.path.extend([each for each in {packagePath()!a} if each not in sys.path])
name = "twisted_ib"
if name not in sys.modules:
    from importlib.util import module_from_spec, spec_from_file_location
    folder = {os.path.join(ROOT, "twisted_ib")!a}
    spec = spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
"""


def _placed(made: Path, python: str) -> None:
    # What the libraries find beside them: so they are the same wherever they lie.  libpython is in a folder
    # that LD_LIBRARY_PATH does not have: other interpreters of this version, if a program starts one, have
    # their own.
    folder = made / PYTHON
    folder.mkdir(mode=0o700)
    (folder / "executable").symlink_to(sys.executable)
    (folder / "start.py").write_text(startCode(), "ascii")
    (folder / os.path.basename(python)).symlink_to(python)


def libraries() -> Path:
    """
    Build the shared objects, if neither the cache nor the package has them.

    @return: the directory with them.
    @raise LibraryBuildError: something that the build needs is missing, and the message names it; or other
        users may change the cache.
    """
    kept = keptFolder()
    if isKept(kept):
        return Path(kept)
    folder = Path(kept)
    _checkWanting()
    python = sharedPython()
    try:
        for each in (folder.parent.parent, folder.parent):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        checkOwners(kept)
    except OSError as error:
        raise LibraryBuildError(f"no directory for libraries: {error}; set XDG_CACHE_HOME") from error

    def fill(temporary: Path, made: Path) -> None:
        if isCarried():
            for name in (VIEW, *SONAMES.values()):
                (made / name).symlink_to(os.path.join(CARRIED, name))
        else:
            _buildAll(temporary, made)
        _placed(made, python)

    built(folder, fill, lambda folder: isKept(str(folder)))
    return folder


def _buildAll(temporary: Path, made: Path) -> None:
    compiler = compilerCommand()
    commands = {library.soname: _prepared(library, temporary, made, compiler) for library in LIBRARIES}
    compileIn(temporary, {**commands, VIEW: viewCommand(made / VIEW, compiler)})


def carry(folder: Path) -> None:
    """
    Build the shared objects for a wheel.  C{setup.py} calls it.

    @param folder: L{CARRIED} in the wheel; it exists.
    @raise LibraryBuildError: something that the build needs is missing, and the message names it.
    """
    _checkWanting()
    with TemporaryDirectory() as temporary:
        _buildAll(Path(temporary), folder)
    (folder / ORIGIN).write_text(origin())


def compilerCommand() -> list[str]:
    """
    @return: the C compiler of C{CC}, or that of Python, or C{cc}.
    @raise LibraryBuildError: there is none.
    """
    chosen = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    for name, *options in (chosen, ["cc"]):
        found = shutil.which(name)
        if found is not None:
            return [os.path.abspath(found), *options]
    raise LibraryBuildError(f"there is no C compiler {chosen[0]}: install one, as Debian's package gcc")


def _checkWanting() -> None:
    for clause in wanting():
        raise LibraryBuildError(clause)


def wanting() -> Iterator[str]:
    """
    @return: what libraries need and this machine has not, with what brings it, a clause each; nothing, if
        there are some or they can be built.
    """
    place = next(each for each in Path(keptFolder()).parents if each.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        yield f"no directory for libraries: {place} is not writable; set XDG_CACHE_HOME"
    try:
        sharedPython()
    except LibraryBuildError as error:
        yield str(error)
    if isCarried():
        return
    try:
        compiler = compilerCommand()
    except LibraryBuildError as error:
        yield str(error)
        compiler = []
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        yield "Python.h is missing: install Python's headers (Debian's python3-dev)"
    if not compiler:
        return
    for library in LIBRARIES:
        for header in library.headers:
            status, _ = compilerRun([*compiler, "-E", "-include", header, "-x", "c", os.devnull])
            if status:
                brings = f"install rdma-core's headers, as Debian's package {library.package}"
                yield f"{header} is missing: {brings}"


def viewCommand(made: Path, compiler: Sequence[str]) -> list[str]:
    """
    @param made: the file that is made.
    @return: the command that builds the library which leads paths of devices to a program's view of them.
    """
    # It needs no Python.
    return [*compiler, *("-shared", "-fPIC", "-O2", "-w", str(_VIEW), "-o", str(made), "-ldl")]


def _prepared(library: Library, temporary: Path, made: Path, compiler: Sequence[str]) -> list[str]:
    # Its sources, and the command that compiles them.
    ffi = _declared(library)
    source = temporary / f"{library.module}.c"
    script = temporary / f"{library.folder}.map"
    # It says on the standard output what it writes.
    with redirect_stdout(StringIO()):
        ffi.emit_c_code(str(source))
    stubs = [each for each in STUBS if each.library == library.soname]
    defaults = {each.name for each in stubs} - {row.name for row in library.table}
    nothing = temporary / f"{library.folder}_stubs.c"
    nothing.write_text(stubSource(stubs, defaults))
    script.write_text(versionScript(library.table, (each.version for each in stubs)))
    # Not through setuptools: three files and one command.
    return [
        *compiler,
        # With exceptions: a call that sleeps is left by pthread_cancel(3), and by siglongjmp(3).
        *("-shared", "-fPIC", "-O2", "-w", "-pthread", "-fexceptions"),
        "-DPy_InitializeEx=twisted_ib_initialize",
        "-DPyImport_ImportModule=twisted_ib_import",
        f'-DTWISTED_IB_SONAME="{library.soname}"',
        f"-I{sysconfig.get_path('include')}",
        f"-I{_INTERPRETER.parent}",
        *(str(source), str(_INTERPRETER), str(nothing)),
        *("-o", str(made / library.soname)),
        f"-Wl,-soname,{library.soname}",
        f"-Wl,--version-script={script}",
        # The interpreter and its threads stay when a program calls dlclose(3).
        *("-Wl,-z,nodelete", "-Wl,-rpath,$ORIGIN/python", sharedPython()),
    ]


def _declared(library: Library) -> Any:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(library.declarations)
    # Not by embedding_api, which would export them.
    ffi.cdef('extern "Python" {\n' + handlerDeclarations(library.table) + "}\n")
    ffi.cdef(pointerDeclarations(library.table))
    ffi.embedding_api("")
    ffi.embedding_init_code(f"import twisted_ib.verbs.c.{library.folder}.library")
    forward = handlerDeclarations(library.table, "static ")
    ffi.set_source(library.module, library.source + forward + exportedFunctions(library.table))
    return ffi
