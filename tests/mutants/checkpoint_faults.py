"""Faults of saving and restoring, with torch and by the job's own functions."""

from __future__ import annotations

from fault import faults_of

OWN = (
    "tests/unit/test_checkpoint_own.py",
    "tests/unit/test_checkpoint_progress.py",
    "tests/unit/test_durability.py",
)

AGREED = ("tests/properties/test_agreed_plans.py", "tests/unit/test_checkpoint_early_staging.py")

FILLING = ("tests/unit/test_checkpoint_filling.py", "tests/unit/test_checkpoint_restoring.py")

TORCH = (
    "tests/unit/test_checkpoint_saving.py",
    "tests/unit/test_checkpoint_early_staging.py",
    "tests/unit/test_checkpoint_restoring.py",
    "tests/unit/test_checkpoint_planner.py",
    "tests/unit/test_checkpoint_memory.py",
    "tests/unit/test_durability.py",
)

FAULTS = (
    *faults_of("checkpoint/saving.py", TORCH, (
        ("files are reported durable before their metadata is there", "            self._writer.write_metadata(agreed.places, reports)\n            self._report_durable()", "            self._report_durable()\n            self._writer.write_metadata(agreed.places, reports)"),
        ("a generation has no metadata", "            self._writer.write_metadata(agreed.places, reports)\n", ""),
        ("a save that was given up is reported durable", "    def _report_durable(self) -> None:\n        self._check_wanted()\n", "    def _report_durable(self) -> None:\n"),
        ("a save that was given up is begun", "            raise self._state\n        self._check_wanted()\n", "            raise self._state\n"),
        ("two saves write one directory", "        self._store.create_tree(generation_prefix(self.generation_id))\n", ""),
    )),
    *faults_of("checkpoint/saving.py", AGREED, (
        ("a plan is used again that another rank no longer has", "any(h.save != known.save for h in all_have)", "False"),
        ("a share that was staged early is written by another plan", "            elif self._early.items != agreed.share.items:", "            elif False:"),
        ("a coordinator that knows nothing hears only of changes", "report_in_full=not known.places.known", "report_in_full=False"),
    )),
    *faults_of("checkpoint/agreed.py", ("tests/unit/test_checkpoint_agreed.py", *AGREED), (
        ("a plan outlives the shape that it was for", " or self.last.shape != shape", ""),
        ("the type of a tensor is no part of its shape", "parts.append((key, value.size(), value.dtype))", "parts.append((key, value.size()))"),
        ("an object that moved stays where it was", "if not _same(now, before)", "if False"),
    )),
    *faults_of("checkpoint/archives.py", ("tests/unit/test_checkpoint_archives.py",), (
        ("a kind of tensor with a form of its own is written as a plain one", "        type(tensor) is not Tensor\n        or tensor.nbytes", "        tensor.nbytes"),
        ("the order of bytes in memory is taken for rows", "        or not tensor.is_contiguous()\n", ""),
        ("what is around a tensor is that of any of its type", "_around(tuple(tensor.size()), tensor.dtype)", "_around((3,), tensor.dtype)"),
    )),
    *faults_of("checkpoint/writer.py", ("tests/unit/test_checkpoint_archives.py",), (
        ("a part is written with all that it is a part of", "        if tensor.untyped_storage().size() != tensor.nbytes:", "        if False:"),
        ("small tensors are placed behind large ones that they precede", "        self.flush()\n        if tensor", "        if tensor"),
    )),
    *faults_of("checkpoint/filling.py", FILLING, (
        ("what nobody wants is not hashed", "        self._skim(offset)\n", ""),
        ("a file is hashed as far as it is read", "        self._skim(self._ranges.size_bytes)\n", ""),
        ("what is read twice is hashed twice", "view[max(0, self._hashed - offset) :]", "view"),
        ("rows begin at the first", "    return int(item.storage_offsets[0]) * _row_bytes(payload)", "    return 0"),
        ("columns are read as rows", "    whole_rows = tuple(item.lengths[1:]) == payload.sizes[1:]", "    whole_rows = True"),
        ("a place with gaps is taken for one without", "        and place.is_contiguous()\n", ""),
    )),
    *faults_of("checkpoint/stored.py", FILLING, (
        ("any order of bytes in memory is taken for rows", "        if size > 1 and stride != step:", "        if False:"),
        ("a conjugated view is taken as it lies", "    if more:  # a view", "    if False:  # a view"),
    )),
    *faults_of("checkpoint/restoring.py", FILLING, (
        ("no file is hashed", "    if port.settings.verify != Verification.CHECKSUMS:", "    if True:"),
    )),
    *faults_of("checkpoint/own.py", OWN, (
        ("a save that is stuck is forgotten", "        stuck = self._commit is not None", "        stuck = False"),
        ("ranks that share a directory wait for one that is stuck", "        if stuck and not self._shared:", "        if stuck:"),
        ("own files are durable before they were synced", "            entries = work(self._proceed)\n            self._proceed()", "            self._port.report_durable(self._generation, [], 0, saver=self._saver)\n            entries = work(self._proceed)\n            self._proceed()"),
        ("a save that was given up is reported durable", "            entries = work(self._proceed)\n            self._proceed()\n", "            entries = work(self._proceed)\n"),
        ("a saver that fails is silent", "        except Exception as error:  # whatever the job's function may raise\n            self._port.report_save_failed(generation, reason_of(error))\n            return", "        except Exception:\n            return"),
        ("a drain does not wait for its save", "        self._begin(order.generation_id, order.step)\n        self._wait()", "        self._begin(order.generation_id, order.step)"),
        ("a save fails by what it returns", "                said = None  # a lambda", "                pass  # a lambda"),
        ("a shared directory needs no names", "            if said is None and self._shared:", "            if False:"),
        ("own files are loaded unverified", "            verify_checksums(self._store, target.generation_id, self._to_verify(manifest))", "            pass"),
        ("a rank verifies what it reads though all may fall back", "        if self._port.settings.on_refused == OnRefused.FALLBACK:", "        if False:"),
        ("own directories are read by another number of ranks", "        if check_job(self._port, target) and not self._shared:", "        if check_job(self._port, target) and False:"),
        ("a load that fails is damage", "        except Exception as error:  # whatever the job's function may raise\n            raise RestoreRefusedError(", "        except AssertionError as error:\n            raise RestoreRefusedError("),
        ("an own save is a step late", "(step + 1) % every == 0", "step % every == 0"),
    )),
    *faults_of("checkpoint/progress.py", OWN, (
        ("a rank saves past the ordered step", "        if step == self.last_step:", "        if step <= self.last_step:"),
        ("a rank behind the ordered step saves it", "        if step == self.last_step:", "        if step >= self.last_step:"),
    )),
    *faults_of("checkpoint/own_files.py", OWN, (
        ("own files are not synced", "            os.fsync(fd)  # whoever wrote the bytes: fsync is of the file, not of the descriptor\n", "            pass\n"),
        ("own directories are not synced", "        sync_directory(directory)", "        pass"),
        ("one level of own directories is synced", "        directories.update(part for part in path.parents if part.is_relative_to(top))", "        pass"),
        ("a file that is still written is taken", "    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):", "    if False:"),
        ("a generation is begun twice by a rank", "    except FileExistsError as error:\n        raise SaveFailedError(f\"{top} was begun", "    except AssertionError as error:\n        raise SaveFailedError(f\"{top} was begun"),
        ("a link is a file", "    if any(part.is_symlink()", "    if False and any(part.is_symlink()"),
        ("the manifest's name is free", "    if name == MANIFEST:", "    if False:"),
        ("any text is a checksum", "        if checksum and not _CHECKSUM.fullmatch(checksum):", "        if False:"),
    )),
)  # fmt: skip
