"""Tests the import hook in real interpreters."""

import re
import sys
import unittest

from .case import ScriptCase

INSTALL = "import sys; seen = []; import _holdfast_imports as hook; hook.install({}, note=seen.append)\n"


class Names(ScriptCase):
    def noted(self, text, **extra):
        done = self.python(self.file("s.py", INSTALL + text), **extra)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_what_is_imported_in_order(self):
        names = self.noted("import xml.dom.minidom, wave; import json\nprint('\\n'.join(seen))\n")
        self.assertEqual([n for n in names if n in ("xml", "xml.dom", "xml.dom.minidom", "wave", "json")], ["xml", "xml.dom", "xml.dom.minidom", "wave", "json"])
        self.assertEqual(len(names), len(set(names)))

    def test_late_imports_without_the_collector_and_in_threads(self):
        names = self.noted("""
import gc, threading
gc.disable()
def late():
    import wave
t = threading.Thread(target=late); t.start(); t.join()
print('\\n'.join(seen))
""")
        self.assertIn("wave", names)

    def test_probes_and_reloads_are_no_imports(self):
        names = self.noted("""
import importlib.util, importlib
assert importlib.util.find_spec('wave') is not None
import json
before = list(seen)
importlib.reload(json)
assert seen == before
assert importlib.util.find_spec('nothing_of_the_kind') is None
print('\\n'.join(seen))
""")
        self.assertNotIn("wave", names)

    def test_never_a_users_own_files(self):
        self.file("mine.py", "")
        self.file("space/inside.py", "")
        self.file("other/site-packages/installed.py", "")
        names = self.noted("sys.path.append('other/site-packages')\nimport mine, space.inside, holdfast, installed, wave\nprint('\\n'.join(seen))\n")
        for name in ("mine", "space", "space.inside", "holdfast", "holdfast._client", "s", "__main__"):
            self.assertNotIn(name, names)
        self.assertIn("wave", names)
        self.assertIn("installed", names)

    def test_modules_are_as_without_us(self):
        """Loaders, specs, errors and tracebacks."""
        self.file("bad.py", "1/0\n")
        text = """
import sys, traceback, importlib.util, wave, xml.dom, mine
for m in (wave, xml.dom, mine):
    s = m.__spec__
    print(s, type(m.__loader__).__name__, sorted(vars(m.__loader__)), s.loader is m.__loader__, m.__file__, getattr(m, '__path__', None))
for name in ('bad', 'nothing', 'xml.nothing', 'wave.nothing'):
    try:
        __import__(name)
    except Exception:
        print(traceback.format_exc())
"""
        self.file("mine.py", "")
        script = self.file("s.py", "import sys\nif len(sys.argv) > 1:\n  import _holdfast_imports as h; h.install({'mine': lambda m: None, 'wave': lambda m: None}, note=lambda n: None)\n" + text)
        plain, ours = self.python(script), self.python(script, "x")
        self.assertEqual(*(re.sub("0x[0-9a-f]+", "", done.stdout + done.stderr) for done in (plain, ours)))
        self.assertIn("ZeroDivisionError", ours.stdout)

    def test_our_errors_are_not_the_scripts(self):
        done = self.python(self.file("s.py", """
            import _holdfast_imports as hook
            def bad(name): raise ValueError('ours')
            hook.install({'wave': bad}, note=bad)
            import wave, json
            print(wave.open is not None)
        """))  # fmt: skip
        self.assertEqual(done.stdout, "True\n")
        self.assertIn("holdfast: import hook: ValueError: ours", done.stderr)

    def test_other_finders_are_asked(self):
        """Three other finders: one present before, one appended later, one inserted first that calls all finders again."""
        done = self.python(self.file("s.py", """
            import sys, types, importlib.machinery, importlib.util
            class Other:
                def __init__(self, name): self.name = name
                def find_spec(self, name, path=None, target=None):
                    if name == self.name:
                        return importlib.machinery.ModuleSpec(name, self)
                    if self.name == 'front' and name == 'wave':
                        return importlib.util.find_spec('json')  # which asks all again
                def create_module(self, spec): return None
                def exec_module(self, module): module.by = self.name
            sys.meta_path.insert(0, Other('there'))
            import _holdfast_imports as hook
            done = []
            hook.install({'behind': done.append}, note=done.append)
            sys.meta_path.append(Other('behind'))
            sys.meta_path.insert(0, Other('front'))
            import there, behind, front
            print(there.by, behind.by, front.by)
            sys.meta_path.remove(hook._finder)
            import wave
        """))  # fmt: skip
        self.assertEqual((done.stdout, done.stderr), ("there behind front\n", ""))

    def test_a_script_that_asks_the_finders_itself(self):
        done = self.python(self.file("s.py", """
            import sys
            import _holdfast_imports as hook
            hook.install({}, note=lambda name: None)
            for f in sys.meta_path:  # at the top level: below find_spec there is one frame only
                print(f.find_spec('colorsys', None) is not None)
        """))  # fmt: skip
        self.assertEqual((done.stdout.count("True"), done.stderr), (2, ""))

    def test_a_finder_of_old_is_left_to_python(self):
        """Up to Python 3.11 a finder may have only find_module; its modules take precedence, also with the hook."""
        self.file("wave.py", "by = 'path'\n")
        text = """
            import sys, types
            class Old:
                def find_module(self, name, path=None): return self if name == 'wave' else None
                def load_module(self, name):
                    sys.modules[name] = module = types.ModuleType(name)
                    module.by = 'old'
                    return module
            sys.meta_path.insert(0, Old())
            if len(sys.argv) > 1:
                import _holdfast_imports as hook
                hook.install({}, note=lambda name: None)
            import wave, colorsys
            print(wave.by, colorsys.__name__)
        """
        plain, ours = (self.python(self.file("s.py", text), *args).stdout for args in ((), ("x",)))
        self.assertEqual(plain, ours)
        self.assertIn("colorsys", ours)


class Actions(ScriptCase):
    def test_once_after_the_module_was_executed(self):
        done = self.python(self.file("s.py", """
            import sys, importlib
            import _holdfast_imports as hook
            ran = []
            hook.install({'wave': lambda m: ran.append((m.__name__, hasattr(m, 'open'))), 'json': lambda m: ran.append(m.__name__)})
            import json
            def late():
                import wave
            late(); late()
            importlib.reload(sys.modules['wave'])
            assert 'exec_module' not in vars(sys.modules['wave'].__loader__)
            hook.install({'wave': lambda m: ran.append('there')})
            print(ran)
        """))  # fmt: skip
        self.assertEqual((done.stdout, done.stderr), ("['json', ('wave', True), 'there']\n", ""))

    def test_a_module_that_fails_at_first(self):
        self.file("flaky.py", "import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\nif sys.tries == 1: raise ImportError('not yet')\n")
        done = self.python(self.file("s.py", """
            import _holdfast_imports as hook
            ran = []
            hook.install({'flaky': ran.append})
            for _ in range(3):
                try:
                    import flaky
                except ImportError as e:
                    print(e)
            print(len(ran), ran[0] is flaky)
        """))  # fmt: skip
        self.assertEqual((done.stdout, done.stderr), ("not yet\n1 True\n", ""))


class Cost(ScriptCase):
    def test_an_import_costs_little_more(self):
        """Only the search: how much longer it takes for a module that exists, and for one that does not."""
        self.file("packages/site-packages/__init__.py", "")
        for i in range(200):
            self.file("packages/site-packages/m%d.py" % i, "")
        script = self.file("s.py", """
            import sys, time
            sys.path.append('packages/site-packages')
            if len(sys.argv) > 1:
                import _holdfast_imports as hook
                hook.install({'other': print}, note=[].append)
            import importlib
            def each(name):
                begin = time.perf_counter()
                for i in range(200):
                    try:
                        importlib.import_module(name % i)
                    except ImportError:
                        pass
                return (time.perf_counter() - begin) / 200 * 1e6
            print(each('m%d'), each('none%d'))
        """)  # fmt: skip
        best = {}
        for _ in range(5):
            for args in ((), ("x",)):
                figures = [float(f) for f in self.python(script, *args).stdout.split()]
                best[args] = [min(a, b) for a, b in zip(best.get(args, figures), figures)]
        more = [b - a for a, b in zip(best[()], best[("x",)])]
        print("an import costs %.1f us more of %.1f, one that fails %.1f of %.1f" % (more[0], best[()][0], more[1], best[()][1]), file=sys.stderr)
        self.assertLess(more[0], 100)
        self.assertLess(more[1], 500)


if __name__ == "__main__":
    unittest.main()
