"""Names with an effect end the reading, however they are reached; names of data do not."""

import os
import pickle
import struct

import pytest
import torch

from converters.checkpoint import open_checkpoint
from converters.checkpoint.inert.effects import has_effect
from converters.errors import CheckpointHoldsCodeError

# Of the lists of fickling, picklescan and ModelScan.
LISTED = """
os.system posix.system nt.system subprocess.Popen pty.spawn sys.exit commands.getoutput runpy._run_code
builtins.eval builtins.exec builtins.compile builtins.open builtins.__import__ builtins.breakpoint
builtins.globals builtins.setattr builtins.input __builtin__.apply __builtin__.execfile
importlib.import_module importlib.machinery.SourceFileLoader imp.load_source pkgutil.resolve_name
zipimport.zipimporter marshal.loads types.CodeType types.FunctionType codeop.compile_command
code.InteractiveInterpreter.runcode ctypes.CDLL _ctypes.dlopen socket.create_connection
ssl.get_server_certificate urllib.request.urlopen http.client.HTTPSConnection httplib.HTTPSConnection
requests.api.get aiohttp.client.ClientSession asyncio.unix_events._UnixSubprocessTransport._start
webbrowser.open smtplib.SMTP imaplib.IMAP4_stream ftplib.FTP poplib.POP3 telnetlib.Telnet nntplib.NNTP
socketserver.TCPServer xmlrpc.client.ServerProxy shutil.rmtree tempfile.mktemp
distutils.file_util.write_file glob.glob fileinput.input linecache.getlines sqlite3.connect tarfile.open
zipfile.ZipFile shelve.open mmap.mmap select.select signal.signal threading.Thread
_thread.start_new_thread atexit.register multiprocessing.process.BaseProcess
multiprocessing.util.spawnv_passfds pickle.loads _pickle.loads cloudpickle.cloudpickle._make_function
dill.loads joblib.load operator.attrgetter operator.itemgetter operator.methodcaller
_operator.methodcaller functools.reduce timeit.timeit cProfile.run profile.Profile.runctx
trace.Trace.run pdb.run bdb.Bdb.run doctest.debug_script pydoc.pipepager pydoc.locate venv.create
ensurepip._run_pip pip.main idlelib.pyshell.ModifiedInterpreter.runcode idlelib.run.Executive.runcode
lib2to3.pgen2.grammar.Grammar.loads logging.FileHandler _io.FileIO io.FileIO io.open
uuid._get_command_stdout _osx_support._read_output _aix_support._read_cmd_output
_pyrepl.pager.pipe_pager inspect.getattr_static test.support.script_helper.assert_python_ok
unittest.mock.patch gc.get_objects site.main platform.popen _interpreters.create
_xxsubinterpreters.create _posixsubprocess.fork_exec pexpect.spawn pipes.Template torch.load
torch.compile torch.serialization.load torch.hub.load torch.jit.unsupported_tensor_ops.execWrapper
torch._dynamo.guards.GuardBuilder.get torch._inductor.codecache.compile_file
torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
torch.utils._config_module.ConfigModule.load_config torch.utils.bottleneck.__main__.run_cprofile
torch.utils.collect_env.run torch.utils.data.datapipes.utils.decoder.basichandlers
numpy.f2py.crackfortran.getlincoef numpy.testing._private.utils.runstring numpy.load
numpy.distutils.exec_command m.C.__subclasses__
""".split()  # noqa: SIM905
HARMLESS = """
argparse.Namespace types.SimpleNamespace functools.partial uuid.UUID builtins.range builtins.slice
builtins.object models.yolo.DetectionModel __main__.Net omegaconf.dictconfig.DictConfig test.Net
code.model.Net torch.nn.modules.conv.Conv2d torch.optim.adam.Adam
torch._dynamo.eval_frame.OptimizedModule torchvision.models.resnet.ResNet pathlib.PosixPath
logging.Logger logging.getLogger utils.io.Config numpy.random._pickle.__randomstate_ctor
collections.UserDict enum.Enum typing.Any datetime.datetime profile.Settings trace.Model
timm.models.layers.select_adaptive_pool.SelectAdaptivePool2d
""".split()  # noqa: SIM905


@pytest.mark.parametrize("full", LISTED)
def test_listed_names_have_an_effect(full):
    module, _, name = full.rpartition(".")
    assert has_effect(module, name)


@pytest.mark.parametrize("name", ["os.system", "os", "sys.modules", "C.__globals__"])
def test_a_way_through_attributes_has_the_effect_of_its_end(name):
    assert has_effect("torch.serialization", name)


@pytest.mark.parametrize("full", HARMLESS)
def test_names_of_data_have_none(full):
    module, _, name = full.rpartition(".")
    assert not has_effect(module, name)


def short(text):
    return b"\x8c" + bytes([len(text)]) + text.encode()


def stack_global(module, name):
    return short(module) + short(name) + b"\x93"


CALL = short("true") + b"\x85R"
# How scanners were passed by: the name is the same, the way to it another.
TECHNIQUES = {
    "GLOBAL": b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.",
    "INST": b"(S'true'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nX\x04\0\0\0trueo.",
    "NEWOBJ": b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04"
    + stack_global("os", "system")
    + b")}"
    + short("a")
    + short("b")
    + b"s\x92.",
    "STACK_GLOBAL": b"\x80\x04" + stack_global("os", "system") + CALL + b".",
    "STACK_GLOBAL from the memo": b"\x80\x04" + short("os") + b"\x94" + short("system") + b"\x940"
    b"0h\0h\x01\x93" + CALL + b".",
    "a name with dots": b"\x80\x04"
    + stack_global("torch.serialization", "os.system")
    + CALL
    + b".",
    "a module's alias": b"\x80\x04" + stack_global("torch.serialization", "os") + b".",
    "discarded": b"\x80\x04(" + stack_global("smtplib", "SMTP") + short("x") + b"o0}.",
    "never called": b"\x80\x04}" + short("x") + stack_global("os", "system") + b"s.",
    "as a key": b"\x80\x04}" + stack_global("os", "system") + b"Ns.",
    "in a partial": b"\x80\x04"
    + stack_global("functools", "partial")
    + stack_global("os", "system")
    + b"\x85R.",
    "the state of a record": b"\x80\x04"
    + stack_global("m", "C")
    + b")\x81}"
    + short("__setstate__")
    + stack_global("os", "system")
    + b"s"
    + b"b"
    + CALL[:-2]
    + b"b.",
    "the state of a module": b"\x80\x02cnt\nfoo\n}X\x01\0\0\0aNsb.",
    "getattr": b"\x80\x04"
    + stack_global("builtins", "getattr")
    + stack_global("m", "C")
    + short("__class__")
    + b"\x86R.",
    "the result of getattr is called": b"\x80\x04"
    + stack_global("builtins", "getattr")
    + stack_global("m", "C")
    + short("run")
    + b"\x86R)R.",
    "a result is called": b"\x80\x04" + stack_global("m", "make") + b")R)R.",
    "across a frame": b"\x80\x04\x95"
    + struct.pack("<Q", 4)
    + stack_global("os", "system")
    + CALL
    + b".",
    "behind the end of a text": b"\x80\x04" + short("x") + b"0cos\nsystem\n.",
    "damaged behind it": b"\x80\x04" + stack_global("os", "system") + CALL + b"\xff\xff",
    "bytes that are no text": b"\x80\x02cos\nsystem\nU\x03\xff\xfe\xfd\x85R.",
    "by copyreg": b"\x80\x02ccopyreg\n__newobj__\ncos\nsystem\n\x85R.",
    "a nested file": b"\x80\x04"
    + stack_global("torch.storage", "_load_from_bytes")
    + b"C\x11\x80\x02cos\nsystem\n)R..\x85R.",
    "the magic number of a file": b"\x80\x02cbuiltins\neval\nX\x01\0\0\0"
    + b"0\x85R.\x80\x02M\xe9\x03.",
}


@pytest.mark.parametrize("data", TECHNIQUES.values(), ids=TECHNIQUES)
def test_each_technique_is_refused_by_name(tmp_path, data, refused):
    path = tmp_path / "x.pkl"
    path.write_bytes(data)
    with refused(CheckpointHoldsCodeError, "is a pickle that names", "nothing was executed"):
        open_checkpoint(path)


def test_an_extension_is_refused(tmp_path):
    """What its number stands for is in no file."""
    for code in (b"\x82\x01", b"\x83\x01\x01", b"\x84\x01\0\0\0"):
        path = tmp_path / "x.pkl"
        path.write_bytes(b"\x80\x02" + code + b".")
        with pytest.raises(Exception, match="has the instruction"):
            open_checkpoint(path)


class Hook:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_module_with_code_in_a_hook_is_refused(tmp_path, refused):
    marker = tmp_path / "marker"
    model = torch.nn.Linear(2, 3)
    model.hook = Hook(marker)
    for zipped in (True, False):
        torch.save(model, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
        with refused(CheckpointHoldsCodeError, "posix.system"):
            open_checkpoint(tmp_path / "x.pt")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(model))
    with refused(CheckpointHoldsCodeError, "posix.system"):
        open_checkpoint(tmp_path / "x.pkl")
    assert not marker.exists()
