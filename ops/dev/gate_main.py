"""Becomes `__main__.py` of the archive, which any Python must be able to read, however old it is.

A Python that cannot run the gate still starts the command, as it is.
"""

import _signal

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # From here on Ctrl-C kills; before, it was the interpreter that answered, with a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import sys


def start_as_it_is(arguments, reason):
    """Become the command behind `--` of `launch`; the status of a shell where that is impossible."""
    if arguments[:1] != ["launch"] or "--" not in arguments[:-1]:
        sys.stderr.write("smgate-launch: cannot run ({0})\n".format(reason))
        return 1
    command = arguments[arguments.index("--") + 1 :]
    sys.stderr.write("smgate-launch: left the command as it is ({0})\n".format(reason))
    sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):
        _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write("smgate-launch: cannot start the command: {0}\n".format(error.strerror))
        return 127 if error.errno == 2 else 126


def main():
    """Run the launch gate or the probe."""
    if sys.version_info < (3, 10):
        return start_as_it_is(sys.argv[1:], "python_too_old")
    try:
        from smgate_agent.launch import standalone

        return standalone.main()
    except Exception as error:
        return start_as_it_is(sys.argv[1:], "gate_error_{0}".format(type(error).__name__.lower()))


sys.exit(main())
