"""Names that have an effect when called: a pickle that names one is an attack.

Reading is safe without this list, since no name of a pickle is ever called. The list makes sure
that a file made to run code is refused by name instead of being half understood. It combines the
lists of three pickle scanners, without names that harmless checkpoints use:

- fickling (`UNSAFE_IMPORTS`, `UnsafeImportsML`): https://github.com/trailofbits/fickling
- picklescan (`_unsafe_globals`): https://github.com/mmaitre314/picklescan
- ModelScan (`unsafe_globals`): https://github.com/protectai/modelscan
"""

from __future__ import annotations

# Modules whose names all count, including submodules.
_MODULES = frozenset(
    """
    os posix nt posixpath ntpath subprocess _posixsubprocess commands popen2 pty multiprocessing
    _multiprocessing sys builtins __builtin__ __builtins__ codeop runpy marshal types _interpreters
    _xxsubinterpreters _xxinterpchannels concurrent sched importlib _frozen_importlib
    _frozen_importlib_external _imp imp pkgutil zipimport gc unittest inspect dis opcode _operator
    operator functools _functools cProfile pdb bdb timeit doctest rlcompleter socket _socket ssl _ssl
    httplib http urllib urllib2 urllib3 requests aiohttp httpx asyncio _asyncio webbrowser smtplib imaplib
    ftplib poplib telnetlib nntplib socketserver xmlrpc wsgiref paramiko ctypes _ctypes cffi _cffi_backend
    pickle _pickle cPickle dill cloudpickle joblib jsonpickle shutil tempfile filecmp distutils setuptools
    fileinput glob platform linecache difflib compileall py_compile pydoc pexpect pipes venv ensurepip pip
    idlelib lib2to3 signal _signal threading _thread atexit sqlite3 _sqlite3 mmap select selectors syslog
    tarfile zipfile shelve dbm _osx_support _aix_support _pyrepl _io io faulthandler readline antigravity
    turtle tkinter win32api winreg _winreg _winapi msvcrt fcntl resource codecs torch.hub torch._dynamo
    torch._inductor torch.jit torch.compile torch.utils.cpp_extension torch.utils.bottleneck
    torch.utils.collect_env torch.utils.model_zoo torch.utils._config_module
    torch.utils.data.datapipes.utils.decoder torch.distributed.elastic torch.distributed.rpc numpy.f2py
    numpy.distutils numpy.testing numpy.ctypeslib
    """.split()  # noqa: SIM905
)
# Names in modules that are otherwise harmless or share a name with users' modules.
_NAMES = frozenset(
    """
    torch.load torch.save torch.compile torch.serialization.load torch.serialization.save torch.package
    torch.serialization._legacy_load torch.serialization._load
    torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression torch.ops.load_library
    torch.classes.load_library numpy.load numpy.save numpy.savez numpy.savetxt numpy.loadtxt
    numpy.fromfile numpy.memmap numpy.DataSource numpy.fromregex numpy.genfromtxt numpy.lib.npyio
    pandas.read_pickle pandas.io.pickle.read_pickle pandas.eval pandas.core.computation.eval.eval
    logging.FileHandler logging.config logging.handlers logging.basicConfig cProfile.run profile.run
    profile.runctx profile.Profile.run profile.Profile.runctx code.InteractiveInterpreter
    code.InteractiveConsole code.interact code.compile_command trace.Trace test.support test.libregrtest
    test.test_asyncio site.main site.execsitecustomize site.addsitedir uuid._get_command_stdout
    uuid._popen uuid.getnode uuid._ifconfig_getter tensorflow.io tensorflow.python.ops.io_ops
    tensorflow.keras.models.load_model keras.models.load_model yaml.load yaml.unsafe_load yaml.full_load
    jinja2.Template sympy.sympify numexpr.evaluate
    """.split()  # noqa: SIM905
)
# Data in the modules above, or names of data.
_HARMLESS = frozenset(
    """
    types.SimpleNamespace types.NoneType types.GenericAlias functools.partial uuid.UUID uuid.SafeUUID
    builtins.bool builtins.int builtins.float builtins.complex builtins.str builtins.bytes
    builtins.bytearray builtins.list builtins.tuple builtins.set builtins.frozenset builtins.dict
    builtins.object builtins.slice builtins.range builtins.xrange builtins.unicode builtins.long
    builtins.len builtins.abs builtins.sum builtins.min builtins.max builtins.round builtins.sorted
    builtins.any builtins.all builtins.reversed builtins.enumerate builtins.zip builtins.Ellipsis
    builtins.NotImplemented builtins.NoneType builtins.Exception builtins.ValueError builtins.TypeError
    builtins.KeyError builtins.RuntimeError operator.add operator.mul operator.sub operator.truediv
    operator.floordiv operator.matmul operator.neg operator.lt operator.gt operator.le operator.ge
    operator.eq operator.ne inspect._empty inspect._ParameterKind inspect.Parameter inspect.Signature
    signal.Signals http.HTTPStatus torch._dynamo.eval_frame.OptimizedModule platform.uname_result
    io.BytesIO io.StringIO _io.BytesIO _io.StringIO
    """.split()  # noqa: SIM905
)
_RENAMED = {"__builtin__": "builtins", "_operator": "operator", "__builtins__": "builtins"}
# A name may be a path of attributes ("serialization.os.system"); these attributes lead out of any
# module.
_WAYS_OUT = frozenset({"__globals__", "__subclasses__", "__builtins__", "__import__", "__loader__"})


def has_effect(module: str, name: str) -> bool:
    """Whether `name` of `module` is on the list, or leads to a listed name.

    Args:
        module: the module's name in the pickle ("torch.serialization").
        name: a name in it, or names joined by dots ("os.system").
    """
    module = _RENAMED.get(module, module)
    if f"{module}.{name}" in _HARMLESS:
        return False
    if _listed(f"{module}.{name}"):
        return True
    # An imported module is an attribute: `os` of torch.serialization is the module os.
    steps = name.split(".")
    return any(
        step in _WAYS_OUT or (_listed(step) and (len(steps) > 1 or step not in _COMMON))
        for step in steps
    )


# Modules of the list whose names are also common names of functions and fields.
_COMMON = frozenset({"select", "signal", "types", "requests", "resource", "platform", "io"})


def _listed(full: str) -> bool:
    steps = full.split(".")
    return any(
        ".".join(steps[:end]) in _MODULES or ".".join(steps[:end]) in _NAMES
        for end in range(1, len(steps) + 1)
    )
