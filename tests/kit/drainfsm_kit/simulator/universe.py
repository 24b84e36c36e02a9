"""What all machines of one simulation share."""

from __future__ import annotations

from functools import partial

from drainfsm_kit.simulator.broker import Broker
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.disk import Disk
from drainfsm_kit.simulator.fibers import Fibers
from drainfsm_kit.simulator.files import Files
from drainfsm_kit.simulator.machine import Machine
from drainfsm_kit.simulator.network import Network
from drainfsm_kit.simulator.plan import Plan
from drainfsm_kit.simulator.process import Process
from drainfsm_kit.simulator.storage import StoreServer
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.threads import RankMachinery
from drainfsm_kit.simulator.timeline import Timeline
from drainfsm_kit.simulator.windows import Windows

HARMLESS = {"clock_skew", "clock_step", "clock_drift"}


class Universe:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self.timeline = Timeline()
        self.chance = Chance(plan.seed)
        self.fibers = Fibers()
        self.network = Network(self.timeline, self.chance, self.tally)
        self.files = Files(self.timeline, self.fibers, self.chance, self.tally)
        self.rank_machinery = RankMachinery(self.fibers, self.timeline)
        self.store = StoreServer(
            self.files.mount("store", kind="store"), self.timeline, self.chance, self.tally
        )
        self.broker = Broker(self.timeline, self.chance, self.tally)
        self.broker.leaks = plan.world.broker_leaks
        self.cordon_faults = Windows(self.timeline)
        self.disks: list[Disk] = []
        self.processes: list[Process] = []
        self.living = 0
        """Processes."""

        self.wrong: list[str] = []
        """Rules that were found broken while it ran."""

    def new_disk(self) -> Disk:
        disk = Disk(self.files.mount(f"disk-{len(self.disks)}", kind="journal"))
        self.disks.append(disk)
        return disk

    def new_machine(
        self, name: str, disk: Disk, *, skew_ms: int = 0, drift_ppm: int = 0
    ) -> Machine:
        if skew_ms:
            self.tally.hit("clock_skew")
        if drift_ppm:
            self.tally.hit("clock_drift")
        return Machine(name, self.timeline, disk, skew_ms=skew_ms, drift_ppm=drift_ppm)

    def new_process(self, name: str, machine: Machine) -> Process:
        process = Process(
            name,
            machine,
            self.timeline,
            self.network,
            self.fibers,
            unix_servers=self.rank_machinery.servers,
        )
        process.on_count = partial(self._process_ended, process)
        self.processes.append(process)
        self.living += 1
        self.tally.counts["processes"] += 1
        return process

    @property
    def calm(self) -> bool:
        """So far nothing has gone wrong that anybody could notice."""
        return not self.tally.faults.keys() - HARMLESS and not self.plan.hopeless

    def _process_ended(self, process: Process) -> None:
        self.living -= 1
        self.files.release(process)

    @property
    def betrayed(self) -> bool:
        """The store's disk lost something that it had said to have synced."""
        return self.store.files.betrayed

    def dispose(self) -> None:
        """End what never ended: threads, tasks."""
        self.network.dispose()
        self.fibers.abandon()
        for process in self.processes:
            process.dispose()
        self.rank_machinery.remove()
        self.files.dispose()
