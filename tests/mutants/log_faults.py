"""Faults of the journal and of what brings it into the stream."""

from __future__ import annotations

from fault import faults_of

JOURNAL = (
    "tests/unit/test_journal.py",
    "tests/unit/test_durability.py",
    "tests/properties/test_journal.py",
)

SHIPMENT = ("tests/unit/test_shipment.py",)
SHIPPER = ("tests/unit/test_shipper.py", *SHIPMENT, "tests/contracts/test_shipper.py")
ATTEMPTS = ("tests/unit/test_attempt_logs.py", "tests/contracts/test_replay_stream.py")
SIGNING = ("tests/unit/test_signing.py", "tests/contracts/test_signed_log.py")

FAULTS = (
    *faults_of("log/journal.py", JOURNAL, (
        ("a record is acknowledged before it is on disk", "            os.fdatasync(self._fd)\n        except BaseException:", "        except BaseException:"),
        ("a short write is taken for a whole one", "            while written < len(data):", "            if written < len(data):"),
        ("a failed append stays in the file", "            self._roll_back()\n            raise", "            raise"),
        ("what was cut off is not known to last", "            os.ftruncate(self._fd, self._size)\n            os.fdatasync(self._fd)", "            os.ftruncate(self._fd, self._size)"),
        ("a journal that could not be rolled back is written on", "            self._broken = str(error)", "            pass"),
        ("an unusable journal is used", "        if self._broken:", "        if False:"),
        ("the next record overwrites the last", "        self._size += len(data)", "        pass"),
        ("a torn tail is left in place", "            os.ftruncate(self._fd, self._size)\n        # What", "            pass\n        # What"),
        ("what was read may be in the page cache only", "        os.fdatasync(self._fd)\n\n    def _check", "\n    def _check"),
        ("a journal's name may not last", "                sync_directory(path.parent)\n        except BaseException:", "                pass\n        except BaseException:"),
        ("two processes write one journal", "                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "                pass"),
        ("another attempt's journal is gone on with", "        if (header.job_id, header.epoch) != (self.job_id, self.epoch):", "        if False:"),
        ("a record may follow anything", "            if not own or record.follows != position:", "            if not own:"),
        ("a record of another attempt is appended", "            if not own or record.follows != position:", "            if record.follows != position:"),
        ("records of one call follow the same one", "in enumerate(records, start=self.count):", "in ((self.count, r) for r in records):"),
        ("records are readable before they are written", "        self.write(frame(b\"\\n\".join(_line(record) for record in records)))\n        self.records.extend(records)", "        self.records.extend(records)\n        self.write(frame(b\"\\n\".join(_line(record) for record in records)))"),
        ("a reader stops at the first record of a call", "        yield end, records", "        yield end, records[:1]"),
        ("a journal is found by any file", "            if match := _NAME.fullmatch(path.name):", "            if match := _NAME.match(path.name):"),
        ("epochs are in the order of the directory", "    return dict(sorted(found.items()))", "    return dict(sorted(found.items(), reverse=True))"),
        ("line breaks in what is not known split a record", 'if b"\\n" in data or b"\\r" in data else data', "if False else data"),
        ("a torn tail is not counted", "        self.dropped_bytes = len(data) - self._size", "        self.dropped_bytes = 0"),
    )),
    *faults_of("log/shipper.py", SHIPPER, (
        ("the live journal is read as an earlier one", "epoch < live.epoch", "epoch <= live.epoch"),
        ("journals of later attempts are shipped", "epoch < live.epoch", "epoch != live.epoch"),
        ("the live journal is let go of", "                if shipment is not self._live:\n", "                if True:\n"),
        ("an outage is told for ever", "message not in reported and len(reported) < REPORTED_MAX", "message not in reported"),
        ("one message more is told", "len(reported) < REPORTED_MAX", "len(reported) <= REPORTED_MAX"),
        ("a connection is suspect one failure late", "failures % FAILURES_MAX == 0", "failures % FAILURES_MAX == 1"),
        ("a connection is never suspect", "if failures % FAILURES_MAX == 0:", "if False:"),
        ("a damaged journal counts as shipped", "            and not self._damaged\n", ""),
        ("a conflict counts as shipped", "            and not any(shipment.conflict for shipment in self._shipments())\n", ""),
        ("every failure costs the connection", "if failures % FAILURES_MAX == 0:", "if True:"),
        ("the newest attempt comes first", "for epoch in sorted(self._earlier)]", "for epoch in sorted(self._earlier, reverse=True)]"),
        ("a refused record holds up other attempts", "            except RecordRefusedError as error:\n                refused = error", "            except RecordRefusedError:\n                raise"),
        ("a refused record is passed over in silence", "        if refused is not None:\n            raise refused", "        pass"),
        ("an outage is told with every try", "        if message not in reported and len(reported) < REPORTED_MAX:", "        if len(reported) < REPORTED_MAX:"),
        ("a damage ends the shipper", "    except (JournalCorruptError, RecordUnreadableError, OSError) as error:\n        return records", "    except (RecordUnreadableError, OSError) as error:\n        return records"),
    )),
    *faults_of("log/shipper.py", ("tests/contracts/test_shipper_misfortunes.py",), (
        ("what was acknowledged is taken for stored", "        if count < expected:", "        if False:"),
        ("a stream that was changed is not looked at again", "        if not self._ready or self._to_confirm:", "        if not self._ready:"),
    )),
    *faults_of("log/jetstream.py", ("tests/contracts/test_forged.py",), (
        ("a record is of the job that it says", "                if stored.record.job_id == message.job_id:", "                if job_id in ('', stored.record.job_id):"),
    )),
    *faults_of("views/jobs.py", ("tests/contracts/test_forged.py",), (
        ("a report believes what a record says of itself", ".job_id) != message.job_id:", ".job_id) is None:"),
    )),
    *faults_of("views/watch.py", ("tests/contracts/test_forged.py",), (
        ("a view believes what a record says of itself", "            if record.job_id != message.job_id:", "            if False:"),
    )),
    *faults_of("log/shipped.py", ("tests/contracts/test_shipper_misfortunes.py",), (
        ("what another stream has is taken for granted", "    if not stream or notes.stream != stream:", "    if not stream:"),
        ("a stream that has lost records is believed", "        and note.message_count == counts.get(epoch, 0)\n", ""),
        ("a journal that has grown is not read", "        and note.journal_bytes == _size(path)\n", ""),
    )),
    *faults_of("log/signing.py", SIGNING, (
        ("a server chooses what is signed", r'MARK = b"\xff drainfsm record\n"', 'MARK = b""'),
        ("any key will do", "        if raw is None:", "        if raw is None and not (raw := next(iter(self._raw.values()))):"),
        ("a signature is not looked at", "        except self._nkeys.nacl.exceptions.BadSignatureError:\n            return \"changed\"", "        except self._nkeys.nacl.exceptions.BadSignatureError:\n            pass"),
        ("what stands behind a signature is not signed", "        if found is None or found.end() != len(line):", "        if found is None:"),
        ("a seed is a public key", "        if len(data) != 35 or data[0] != self._nkeys.PREFIX_BYTE_USER or not checked:", "        if len(data) != 35 or not checked:"),
    )),
    *faults_of("views/attempt_logs.py", ATTEMPTS, (
        ("an attempt is read without the one that knows of its loss", "if name[1] == epoch and name[0] == after[0]", "if False"),
        ("the attempts' places are mixed up", "        name = (record.job_id, record.epoch)\n        self", "        name = (record.job_id, 1)\n        self"),
        ("of one attempt all subjects are read", "    if epoch is not None:  # the attempt behind", "    if False:  # the attempt behind"),
        ("a record of another job is taken", "        if job_id not in (None, record.job_id):", "        if False:"),
    )),
    *faults_of("views/verify.py", SIGNING, (
        ("records behind the last signature are good", "            self._tell(\"unsigned\", unsigned[-1]", "            unsigned[1:] and self._tell(\"unsigned\", unsigned[-1]"),
        ("a signature stands for what its record does not name", "            proven = one.digest == named", "            proven = named is not UNSET"),
        ("the next attempt does not know where the one before ended", "        if restore.epoch == epoch and not", "        if False and not"),
    )),
    *faults_of("runtime/coordinator/decision_loop.py", SIGNING, (
        ("a log is not signed to its end", "            records[-1] = self._sign(records[-1])", "            records[0] = self._sign(records[0])"),
    )),
    *faults_of("log/frames.py", JOURNAL, (
        ("any file is a journal", "    if data[: len(MAGIC)] != MAGIC[: len(data)]:", "    if False:"),
        ("a journal of a newer format is read", "    if header.format_version > FORMAT_VERSION:", "    if False:"),
        ("zeros that a crash left are no empty journal", '    if not data.strip(b"\\0"):', "    if not data:"),
    )),
    *faults_of("log/shipment.py", (*SHIPMENT, "tests/contracts/test_shipper_misfortunes.py"), (
        ("the last record is not sent", "self.shipped_count >= len(self.records)", "self.shipped_count >= len(self.records) - 1"),
        ("a doubt is no doubt", "self.shipped_count >= len(self.records) and not self._doubted", "self.shipped_count >= len(self.records)"),
        ("a conflict is for ever", "        self._doubted = True\n        self.conflict = \"\"", "        self._doubted = True"),
        ("a refusal too few is waited for", "if fruitless > FRUITLESS_MAX:", "if fruitless >= FRUITLESS_MAX:"),
        ("a refusal too many is waited for", "if fruitless > FRUITLESS_MAX:", "if fruitless > FRUITLESS_MAX + 1:"),
        ("refusals add up over a whole log", "                fruitless = 0\n                self.shipped_count += 1", "                self.shipped_count += 1"),
        ("a sequence is believed though no answer came", "after, self._sequence = self._sequence, None  # in doubt until the answer is here", "after = self._sequence"),
        ("a replica that is behind is believed", "if len(messages) < message_count:", "if False:"),
        ("a replica that has everything is not believed", "if len(messages) < message_count:", "if len(messages) <= message_count:"),
        ("what follows our last record ends the shipper", "if count < len(self.records) and record.id", "if record.id"),
        ("our last record is taken for another writer's", "if count < len(self.records) and record.id", "if count < len(self.records) - 1 and record.id"),
        ("any record in our place is ours", "record.id == self.records[count].id:", "record.follows == count:"),
        ("another writer's record is passed over", "            elif self._would_count(record, position=count):", "            elif False:"),
        ("what nobody counts is a conflict", "        return own and record.follows == position", "        return own"),
        ("another job's record is a conflict", "        return own and record.follows == position", "        return record.follows == position"),
        ("a stream that holds something is taken for empty", "        if count == 0:", "        if count <= 1:"),
        ("what the stream has forgotten is shipped again", "        if not after_ms:\n            return 0", "        if True:\n            return 0"),
        ("what another put behind ours is overwritten", "        self._sequence = messages[-1].sequence", "        self._sequence = count"),
    )),
)  # fmt: skip
