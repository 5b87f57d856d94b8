"""
Tests for C{ib-run --queues}: programs of C{multiprocessing} get the connections and queues of
L{twisted_ib.queues}.
"""

from __future__ import annotations

from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase

#: Says where its classes are from, and so does each process that it starts; they answer each other.
_CLASSES = """
import multiprocessing, sys
from multiprocessing import connection
def kinds(context):
    made = [*context.Pipe(), context.Queue(), context.JoinableQueue(), context.SimpleQueue()]
    return {type(each).__module__.split(".")[0] for each in made} | {connection.wait.__module__.split(".")[0]}
def work(asked, pipe, results):
    for number in iter(asked.get, None):
        results.put(number + 1)
        asked.task_done()
    asked.task_done()
    pipe.send(kinds(multiprocessing))
    pipe.close()
if __name__ == "__main__":
    print("own", *kinds(multiprocessing))
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        asked, results = context.JoinableQueue(), context.SimpleQueue()
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(asked, theirs, results))
        process.start()
        theirs.close()
        for each in (1, 2, None):
            asked.put(each)
        asked.join()
        connection.wait([mine])
        print(method, results.get(), results.get(), *mine.recv())
        print(connection.wait([mine]) == [mine], connection.wait([process.sentinel]) == [process.sentinel])
        process.join()
"""
#: Executors: results, an exception, a large object, workers that die.
_EXECUTOR = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            print(method, *pool.map(abs, range(-3, 0)), type(pool._call_queue).__mro__[1].__module__)
            print(len(pool.submit(bytes, 1 << 20).result()), sum(pool.map(len, [b"a" * 300000] * 9)))
            print(type(pool.submit(int, "a").exception()).__name__)
            print(sum(pool.map(abs, range(500), chunksize=3)))
        if sys.version_info < (3, 11):
            # There it hangs with multiprocessing's own queues, too.
            print(True)
            continue
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            # Before Python 3.12 one that starts while another is found dead is waited for, for ever.
            while len(pool._processes) < 2:
                list(pool.map(abs, range(9)))
            dying = pool.submit(os._exit, 3)
            try:
                others = [pool.submit(len, b"a" * 300000) for each in range(9)]
                print({type(each.exception()) for each in [dying, *others]} >= {BrokenProcessPool})
            except BrokenProcessPool:
                print(True)
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, range(-3, 0)), type(pool._inqueue).__module__)
    with multiprocessing.Manager() as manager:
        shared = manager.list([1])
        print(*shared)
"""
_EXECUTED = """{} 3 2 1 twisted_ib.queues.queue
1048576 2700000
ValueError
124750
True
"""


class QueuesTests(RunTestCase):
    """
    Programs of C{multiprocessing}.
    """

    def test_classes(self) -> None:
        """
        They have the classes with each way to start a process, and so have their children.
        """
        (self.folder / "classes.py").write_text(_CLASSES)
        methods = ("fork", "spawn", "forkserver")
        running = self.running("-q", "--queues", "classes.py", *methods)
        without = self.running("-q", "classes.py")
        said, complaints = running.communicate(timeout=HANG_SECONDS)
        expected = "".join(f"{each} 2 3 twisted_ib\nTrue True\n" for each in methods)
        self.assertEqual((said, complaints), ("own twisted_ib\n" + expected, ""))
        self.assertEqual(without.communicate(timeout=HANG_SECONDS)[0], "own multiprocessing\n")

    def test_executor(self) -> None:
        """
        C{ProcessPoolExecutor} works on them, also when workers die; and so do pools and managers.
        """
        (self.folder / "executor.py").write_text(_EXECUTOR)
        running = self.running("-q", "--queues", "executor.py")
        said, complaints = running.communicate(timeout=HANG_SECONDS)
        expected = "".join(_EXECUTED.format(each) for each in ("fork", "spawn", "forkserver"))
        self.assertEqual(said, expected + "[3, 2, 1] twisted_ib.queues.queue\n1\n", complaints)

    def test_loky(self) -> None:
        """
        The queues of loky, which are of C{multiprocessing}'s own by their insides, stay so.
        """
        backend = self.folder / "loky" / "backend"
        backend.mkdir(parents=True)
        names = "from multiprocessing.queues import SimpleQueue as mp_SimpleQueue\n\n\n"
        names += "class SimpleQueue(mp_SimpleQueue):\n    pass\n"
        (backend / "queues.py").write_text(names)
        code = "import multiprocessing; from loky.backend import queues; "
        code += "queue = queues.SimpleQueue(ctx=multiprocessing.get_context()); queue.put(1); "
        code += "print(queues.mp_SimpleQueue.__module__, type(queue).__mro__[1].__module__, queue.get()); "
        code += "print(type(multiprocessing.SimpleQueue()).__module__)"
        said, complaints = self.running("-q", "--queues", "-c", code).communicate(timeout=HANG_SECONDS)
        expected = "multiprocessing.queues multiprocessing.queues 1\ntwisted_ib.queues.queue\n"
        self.assertEqual(said, expected, complaints)

    def test_imported(self) -> None:
        """
        It does not matter which is imported first.
        """
        for first in ("twisted_ib.queues", "multiprocessing.connection", "multiprocessing.queues"):
            code = f"import {first}, multiprocessing.queues; from multiprocessing import connection, queues\n"
            code += "print(connection.Pipe.__module__, queues.Queue.__module__, connection.wait.__module__)"
            said, complaints = self.running("-q", "--queues", "-c", code).communicate(timeout=HANG_SECONDS)
            modules = (f"twisted_ib.queues.{each}" for each in ("connection", "queue", "waiting"))
            self.assertEqual(said, " ".join(modules) + "\n", complaints)

    def test_missing(self) -> None:
        """
        Where there can be none, the program keeps C{multiprocessing}'s, and is told so.
        """
        code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        code += "import multiprocessing; print(type(multiprocessing.Queue()).__module__)"
        said, complaints = self.running("--queues", "-c", code).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "multiprocessing.queues\n", complaints)
        self.assertIn("multiprocessing keeps its pipes and queues: others need files of", complaints)
