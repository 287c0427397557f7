"""Program that makes stdin its controlling terminal, then execs another one.

The agent runs it by its path. It imports nothing of ours, so that it starts fast.
"""

import fcntl
import os
import signal
import sys
import termios


def main() -> None:
    """Become the program that the arguments name."""
    # The agent may ignore or block signals, and its children would do so too.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
