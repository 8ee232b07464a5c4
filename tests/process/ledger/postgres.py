"""A PostgreSQL server of the tests' own: the distribution's programs, a fresh folder, a free port
of 127.0.0.1, an unprivileged user.
"""

import contextlib
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import uuid

import psutil
import psycopg

SETTINGS = (
    "-c listen_addresses=127.0.0.1 -c shared_buffers=16MB -c max_connections=60 -c fsync=on -c"
    " autovacuum=off -c log_min_messages=fatal"
)


def programs():
    """The folder of initdb and pg_ctl, the newest version first; None where PostgreSQL is not
    installed.
    """
    homes = sorted(
        pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda home: -int(home.parent.name)
    )
    found = shutil.which("initdb")
    homes += [pathlib.Path(found).resolve().parent] if found else []
    return next(
        (home for home in homes if (home / "initdb").exists() and (home / "pg_ctl").exists()), None
    )


class Server:
    """Running from birth on; `stop`, `crash` and `start` it."""

    def __init__(self, home):
        self._home = home
        # not pytest's own: another user must get through
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="dpbo_pg_"))
        self._user = _unprivileged()
        if self._user:
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        self._run(
            "initdb",
            "-D",
            self._data,
            "-A",
            "trust",
            "-U",
            "dpbo",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        for _ in range(5):  # another program may take a free port before the server does
            with (
                contextlib.suppress(subprocess.CalledProcessError),
                socket.create_server(("127.0.0.1", 0)) as probe,
            ):
                self.port = probe.getsockname()[1]
                probe.close()
                self.start()
                return
        raise RuntimeError("PostgreSQL does not start")

    def start(self):
        options = f"-p {self.port} -k {self._folder} {SETTINGS}"
        self._run(
            "pg_ctl",
            "-D",
            self._data,
            "-w",
            "-t",
            "110",
            "-l",
            self._folder / "log",
            "-o",
            options,
            "start",
        )

    def stop(self, mode="fast"):
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def crash(self):
        """kill -9 of every process of the server: no checkpoint, and nothing is there afterwards
        but what was written out.
        """
        postmaster = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        everyone = [postmaster, *postmaster.children(recursive=True)]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everyone, timeout=120)

    def restart(self):
        """Start after a crash; the old children may need a moment to go."""
        for _ in range(20):
            with contextlib.suppress(subprocess.CalledProcessError):
                return self.start()
            time.sleep(0.25)
        self.start()

    def remove(self):
        self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def schema(self, *, settings="", port=None):
        """The URL of a new, empty schema, which is quicker made than a database; by another port
        where something stands between.
        """
        name = "s" + uuid.uuid4().hex
        self.ask(f"CREATE SCHEMA {name}")
        options = urllib.parse.quote(f"-csearch_path={name} {settings}".strip())
        place = f"127.0.0.1:{port or self.port}/postgres"
        return f"postgresql+psycopg://dpbo@{place}?connect_timeout=60&options={options}"

    def ask(self, statement):
        """The rows that a statement gives, by a connection of its own."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="dpbo", dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def cut(self):
        """End every other session, as an administrator or a server that is short of memory does."""
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres' AND"
            " pid <> pg_backend_pid()"
        )

    def _run(self, program, *arguments):
        command = [str(self._home / program), *map(str, arguments)]
        as_user = (
            {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}
            if self._user
            else {}
        )
        with (self._folder / "out").open("ab") as out:  # a pipe would stay open in the server
            subprocess.run(
                command,
                check=True,
                stdout=out,
                stderr=out,
                cwd=self._folder,
                timeout=120,
                **as_user,
            )


def _unprivileged():
    """initdb refuses root: the distribution's user, else nobody; None where the tests run as
    one.
    """
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
