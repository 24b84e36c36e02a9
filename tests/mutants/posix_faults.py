"""Faults of the store on a file system, and of what it is told so that things last."""

from __future__ import annotations

from fault import faults_of

POSIX = (
    "tests/unit/test_store_posix.py",
    "tests/unit/test_durability.py",
    "tests/contracts/test_stores.py",
    "tests/unit/test_stored_token.py",
)
GENERATIONS = (
    "tests/unit/test_store_generations.py",
    "tests/unit/test_gc.py",
    "tests/contracts/test_gc.py",
    "tests/properties/test_gc.py",
)

FAULTS = (
    *faults_of("durable.py", (*POSIX, "tests/unit/test_journal.py"), (
        ("a file has its name before its bytes last", "            os.fsync(fd)\n        finally:\n            os.close(fd)\n    except BaseException:", "            pass\n        finally:\n            os.close(fd)\n    except BaseException:"),
        ("a name is not made durable", "        os.fsync(fd)\n    except OSError as error:", "        pass\n    except OSError as error:"),
        ("a directory that cannot be synced passes", "        if error.errno not in _NO_DIRECTORY_SYNC:\n            raise", "        pass"),
        ("file systems that cannot sync directories cannot be used", "        if error.errno not in _NO_DIRECTORY_SYNC:\n            raise", "        raise"),
        ("a short write is taken for a whole one", "            while view:", "            if view:"),
        ("a disk that is full keeps half a file", "        path.unlink(missing_ok=True)\n        raise", "        raise"),
        ("parents are not made durable", "            directory.mkdir(exist_ok=True)\n            sync_directory(directory.parent)", "            directory.mkdir(exist_ok=True)"),
        ("a directory that vanished is believed to be there", "        if path in self._durable and path.is_dir():", "        if path in self._durable:"),
        ("a new directory is not made durable", "            path.mkdir(exist_ok=True)\n        sync_directory(path.parent)\n        self._durable.add(path)", "            path.mkdir(exist_ok=True)\n        self._durable.add(path)"),
        ("a root that vanished is made again", "            os.stat(path)\n", "            path.mkdir(exist_ok=True)\n"),
        ("a store is made where nothing is mounted", "        if not parents and not self._root.parent.is_dir():", "        if False:"),
        ("a new tree may not last", "        path.mkdir()\n        sync_directory(path.parent)", "        path.mkdir()"),
    )),
    *faults_of("store/posix.py", POSIX, (
        ("a slot may not last", "            sync_directory(path.parent)  # also where it was taken: what is seen must last", "            pass"),
        ("a taken slot is given", "        if not made:\n            raise", "        if False:\n            raise"),
        ("a slot is written in place", "            temporary = self._temporary(path)\n            write_synced(temporary, data)\n            try:\n                made = self._name_once(temporary, path, data)\n            finally:\n                temporary.unlink(missing_ok=True)", "            try:\n                write_synced(path, data)\n                made = True\n            except FileExistsError:\n                made = False"),
        ("a slot is renamed into its place", "            self._link(temporary, path)", "            temporary.replace(path)"),
        ("temporary files stay", "                made = self._name_once(temporary, path, data)\n            finally:\n                temporary.unlink(missing_ok=True)", "                made = self._name_once(temporary, path, data)\n            finally:\n                pass"),
        ("a link whose answer was lost is not ours", "            if temporary.stat().st_nlink > 1:\n                return True", "            if False:\n                return True"),
        ("a refused link is made", "            if isinstance(error, FileExistsError):\n                return False", "            if isinstance(error, FileExistsError):\n                return True"),
        ("any error of a link means that there are none", "            if error.errno not in _NO_LINK:\n                raise", "            pass"),
        ("an object that was replaced may not last", "                temporary.unlink(missing_ok=True)\n                raise\n            sync_directory(path.parent)", "                temporary.unlink(missing_ok=True)\n                raise"),
        ("a failed put leaves its temporary file", "            except BaseException:\n                temporary.unlink(missing_ok=True)\n                raise\n            sync_directory", "            except BaseException:\n                raise\n            sync_directory"),
        ("a secret is on disk before it is known to be private", "                if not _is_private(temporary):", "                if False:"),
        ("a secret replaces whatever is there", "                elif not self._name_once(temporary, path, data, mode=PRIVATE):", "                elif not (temporary.replace(path) or True):"),
        ("others may read a secret", "PRIVATE = 0o600", "PRIVATE = 0o640"),
        ("listings show temporary files", "        return sorted(name for name in found if not name.startswith(TEMPORARY_PREFIX))", "        return sorted(found)"),
        ("a tree shows temporary files", "        if entry.name.startswith(TEMPORARY_PREFIX):\n            continue\n", ""),
        ("a removal may not last", "            except _ABSENT:\n                return\n            sync_directory(path.parent)", "            except _ABSENT:\n                return"),
        ("a tree's removal may not last", "            sync_directory(top.parent)\n\n    def create_tree", "            pass\n\n    def create_tree"),
        ("a stream ends before its bytes last", "                    os.fsync(stream.fileno())\n", ""),
        ("a stream is synced before its last bytes", "                    stream.flush()\n", ""),
        ("a stream's file may have no name", "                path.unlink(missing_ok=True)\n                raise\n            sync_directory(path.parent)", "                path.unlink(missing_ok=True)\n                raise"),
        ("a stream that fails leaves its file", "            except BaseException:\n                path.unlink(missing_ok=True)\n                raise\n            sync_directory(path.parent)\n\n    @contextmanager\n    def reader", "            except BaseException:\n                raise\n            sync_directory(path.parent)\n\n    @contextmanager\n    def reader"),
        ("a file that vanishes ends the listing", "        except FileNotFoundError:  # removed since the directory was read\n            continue", "        except FileNotFoundError:\n            raise"),
        ("what is no answer is an absent object", "_ABSENT = (FileNotFoundError, NotADirectoryError)", "_ABSENT = (OSError,)"),
        ("errors of the file system come as they are", "    except OSError as error:\n        raise StoreUnreachableError(", "    except AssertionError as error:\n        raise StoreUnreachableError("),
    )),
    *faults_of("store/gc.py", GENERATIONS, (
        ("the claim is read after the commits", "    epoch = log.head().epoch\n    commits = tuple(commit for _, commit in log.commits())", "    commits = tuple(commit for _, commit in log.commits())\n    epoch = log.head().epoch"),
        ("the newest record is not asked for", "    for number in range(epoch, 0, -1):", "    for number in range(epoch - 1, 0, -1):"),
        ("files go before the manifest", "    store.delete(prefix + MANIFEST)  # first: from here on it is refused as a whole\n    for name in store.list(prefix):\n        if name != PRUNED:\n            store.delete(prefix + name)", "    for name in store.list(prefix):\n        if name not in (PRUNED, MANIFEST):\n            store.delete(prefix + name)\n    store.delete(prefix + MANIFEST)"),
        ("a generation goes before its tombstone is there", "    put_settled(store, prefix + PRUNED, encode_object(tombstone))\n    store.delete(prefix + MANIFEST)", "    store.delete(prefix + MANIFEST)\n    put_settled(store, prefix + PRUNED, encode_object(tombstone))"),
        ("a tombstone goes, too", "        if name != PRUNED:\n            store.delete(prefix + name)", "        store.delete(prefix + name)"),
        ("one that fails stops the others", "        except (StoreError, OSError) as failure:\n            error = str(failure) or repr(failure)", "        except (StoreError, OSError) as failure:\n            raise"),
        ("what is kept is removed", "        if not verdict.removes:\n            continue", "        if False:\n            continue"),
        ("a committed generation leaves nothing in its place", "    if commit is None:\n        store.delete_tree(prefix)\n        return", "    if True:\n        store.delete_tree(prefix)\n        return"),
    )),
    *faults_of("store/generations.py", GENERATIONS, (
        ("a file of other content is taken", "    if found != entry.checksum:", "    if False:"),
        ("files are not compared with the manifest", "    verify_stored(manifest.entries, list_files(store, manifest.generation_id))\n", ""),
        ("the manifest counts as an extra file", "    stored.pop(MANIFEST, None)\n", ""),
    )),
)  # fmt: skip
