"""Stands in for the controllers of Trainer 2.3, JobSet 0.9 and Indexed Jobs, none of which can be had here.

The API server, garbage collector, scheduler and kubelet behind it are real. It holds no state of its own: what it does
follows from the objects that there are, so that it may be started again at any time. It ends with its standard input.

    python -m tests.kubernetes.controllers SERVER FOLDER TOKEN
"""

from __future__ import annotations

import os
import sys
import threading
import time
from calendar import timegm
from pathlib import Path
from typing import Any

import urllib3

from tests.kubernetes import admission, jobset_double, pod_names, trainer_double
from tests.kubernetes.definitions import JOBSET, JOBSET_VERSION, TRAINER, TRAINER_VERSION
from tests.kubernetes.rest import Rest, RestError

Json = dict[str, Any]

TRAINER_PATH = f"/apis/{TRAINER}/{TRAINER_VERSION}"
JOBSET_PATH = f"/apis/{JOBSET}/{JOBSET_VERSION}"
DONE_INDEXES = "sky-tests/done-indexes"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_TROUBLE = (RestError, urllib3.exceptions.HTTPError, OSError, ValueError)


class Watched:
    """A collection, as it is; each change sets `wake`."""

    def __init__(self, rest: Rest, path: str, wake: threading.Event) -> None:
        self._rest, self._path, self._wake = rest, path, wake
        self._objects: dict[str, Json] = {}
        threading.Thread(target=self._follow, daemon=True).start()

    def all(self) -> list[Json]:
        return list(self._objects.values())

    def _follow(self) -> None:
        while True:
            try:
                self._once()
            except _TROUBLE as error:  # the API server is restarted now and then
                print(f"{self._path}: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)

    def _once(self) -> None:
        found = self._rest.get(self._path)
        self._objects = {one["metadata"]["uid"]: one for one in found["items"]}
        self._wake.set()
        for event in self._rest.watch(self._path, found["metadata"]["resourceVersion"]):
            if event["type"] == "ERROR":
                return
            uid = event["object"]["metadata"]["uid"]
            if event["type"] == "DELETED":
                self._objects.pop(uid, None)
            else:
                self._objects[uid] = event["object"]
            self._wake.set()


class TrainJobs:
    """Brings what there is to what TrainJobs ask for."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def reconcile(self, job: Json) -> None:
        """One step for one TrainJob: its objects are made, its pods replaced, its status told."""
        if job["metadata"].get("deletionTimestamp") or _is(job, "Complete") or _is(job, "Failed"):
            return
        runtime = self._runtime(job)
        if runtime is None:
            self._tell(
                job, [("Failed", "True", "TrainingRuntimeNotFound", "the runtime of the TrainJob is not there")], []
            )
            return
        jobset = self._jobset(job, runtime)
        self._rest.ensure(_core(job, "services"), jobset_double.service_of(jobset))
        rows = [self._job(jobset, wanted) for wanted in jobset_double.jobs_of(jobset)]
        self._tell(job, self._conditions(job, rows), rows)

    def _runtime(self, job: Json) -> Json | None:
        reference, namespace = job["spec"]["runtimeRef"], job["metadata"]["namespace"]
        if reference.get("kind") == "TrainingRuntime":
            return self._rest.find(f"{TRAINER_PATH}/namespaces/{namespace}/trainingruntimes/{reference['name']}")
        return self._rest.find(f"{TRAINER_PATH}/clustertrainingruntimes/{reference['name']}")

    def _jobset(self, job: Json, runtime: Json) -> Json:
        """The JobSet; suspended or resumed where the TrainJob is."""
        name, wanted = job["metadata"]["name"], trainer_double.jobset_of(job, runtime)
        collection = f"{JOBSET_PATH}/namespaces/{job['metadata']['namespace']}/jobsets"
        self._rest.ensure(_core(job, "configmaps"), _snapshot(job, runtime))
        found = self._rest.ensure(collection, wanted)
        if bool(found["spec"].get("suspend")) != wanted["spec"]["suspend"]:
            found = self._rest.patch(f"{collection}/{name}", {"spec": wanted["spec"]})
        return found

    def _job(self, jobset: Json, wanted: Json) -> Json:
        """Bring one Job's pods to what it wants; its row of the TrainJob's status."""
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        collection = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        job = self._rest.ensure(collection, wanted)
        uid, pods_path = job["metadata"]["uid"], f"/api/v1/namespaces/{namespace}/pods"
        pods = self._rest.get(f"{pods_path}?labelSelector=controller-uid%3D{uid}")["items"]
        done = self._note_done(f"{collection}/{name}", job, pods)
        live = {
            index_of(pod): pod
            for pod in pods
            if _phase(pod) in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        }
        count, suspended = wanted["spec"].get("completions", 1), bool(wanted["spec"]["suspend"])
        failed = _past_backoff(pods, wanted["spec"]["backoffLimit"])
        if suspended or failed:
            for pod in live.values():
                self._rest.remove(f"{pods_path}/{pod['metadata']['name']}")
        else:
            for index in set(range(count)) - live.keys() - done:
                live[index] = self._rest.post(pods_path, jobset_double.pod_of(wanted, uid, index))
        ready = len(done) + sum(map(_ready, live.values()))
        over = len(done) >= count
        return {
            "name": wanted["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"],
            "ready": int(ready >= count and not suspended),
            "succeeded": int(over),
            "failed": int(failed),
            "active": int(not (over or suspended or failed)),
            "suspended": int(suspended),
        }

    def _note_done(self, path: str, job: Json, pods: list[Json]) -> set[int]:
        """The indexes that have succeeded, kept at the Job: their pods may be deleted."""
        text = (job["metadata"].get("annotations") or {}).get(DONE_INDEXES, "")
        before = {int(part) for part in text.split(",") if part}
        done = before | {index_of(pod) for pod in pods if _phase(pod) == "Succeeded"}
        if done != before:
            self._rest.patch(path, {"metadata": {"annotations": {DONE_INDEXES: ",".join(map(str, sorted(done)))}}})
        return done

    def _conditions(self, job: Json, rows: list[Json]) -> list[tuple[str, str, str, str]]:
        """What is to be said of a TrainJob: type, status, reason and message of each condition."""
        suspended = bool(job["spec"].get("suspend"))
        found = []
        if suspended:
            found.append(("Suspended", "True", "Suspended", "TrainJob is suspended"))
        elif _condition(job, "Suspended"):
            found.append(("Suspended", "False", "Resumed", "TrainJob is resumed"))
        if any(row["failed"] for row in rows):
            found.append(("Failed", "True", "FailedJobs", "jobset failed due to one or more job failures"))
        elif rows and all(row["succeeded"] for row in rows):
            found.append(("Complete", "True", "AllJobsCompleted", "jobset completed successfully"))
        elif not suspended and _past_deadline(job):
            found.append(("Failed", "True", "DeadlineExceeded", "TrainJob exceeded its active deadline"))
            meta = job["metadata"]
            self._rest.remove(f"{JOBSET_PATH}/namespaces/{meta['namespace']}/jobsets/{meta['name']}")
        return found

    def _tell(self, job: Json, conditions: list[tuple[str, str, str, str]], rows: list[Json]) -> None:
        status = job.get("status") or {}
        known = {one["type"]: one for one in status.get("conditions") or []}
        now = time.strftime(_TIME, time.gmtime())
        for kind, value, reason, message in conditions:
            if known.get(kind, {}).get("status") != value:
                said = {"type": kind, "status": value, "reason": reason, "message": message}
                known[kind] = {**said, "lastTransitionTime": now}
        new: Json = {"conditions": list(known.values())} if known else {}
        if rows:
            new["jobsStatus"] = rows
        if new != status:
            meta = job["metadata"]
            path = f"{TRAINER_PATH}/namespaces/{meta['namespace']}/trainjobs/{meta['name']}/status"
            self._rest.patch(path, {"status": new})


def index_of(pod: Json) -> int:
    """The index of a pod of an Indexed Job."""
    return int(pod["metadata"]["annotations"][trainer_double.INDEX])


def _snapshot(job: Json, runtime: Json) -> Json:
    """The ConfigMap in which Trainer keeps the runtime as it was."""
    meta = job["metadata"]
    reference = trainer_double.owner(job, "TrainJob", f"{TRAINER}/{TRAINER_VERSION}")
    name = f"{meta['name']}-runtime"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": [reference]},
        "data": {"runtime": str(runtime["spec"])},
    }


def _core(job: Json, plural: str) -> str:
    return f"/api/v1/namespaces/{job['metadata']['namespace']}/{plural}"


def _phase(pod: Json) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def _ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _past_backoff(pods: list[Json], limit: int) -> bool:
    """Whether too many pods have failed, or been restarted in their place."""
    failures = sum(_phase(pod) == "Failed" and not pod["metadata"].get("deletionTimestamp") for pod in pods)
    restarts = sum(
        one.get("restartCount", 0)
        for pod in pods
        if _phase(pod) in ("Pending", "Running")
        for one in (pod.get("status") or {}).get("containerStatuses") or []
    )
    return failures > limit or restarts > limit


def _condition(job: Json, kind: str) -> Json | None:
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), None)


def _is(job: Json, kind: str) -> bool:
    found = _condition(job, kind)
    return found is not None and found["status"] == "True"


def _past_deadline(job: Json) -> bool:
    """Whether a TrainJob has been active for longer than it may; a resumed one restarts."""
    limit = job["spec"].get("activeDeadlineSeconds")
    if not limit:
        return False
    resumed = _condition(job, "Suspended")
    begun = resumed["lastTransitionTime"] if resumed else job["metadata"]["creationTimestamp"]
    return time.time() - timegm(time.strptime(begun, _TIME)) > limit


def main(server: str, folder: str, token: str) -> None:
    place = Path(folder)
    pki = place / "pki"
    rest = Rest(server, pki / "ca.crt", token)
    admission.serve(pki / "api.crt", pki / "api.key", place / "tokens.json")
    wake = threading.Event()
    jobs, controller = Watched(rest, f"{TRAINER_PATH}/trainjobs", wake), TrainJobs(rest)
    pods = Watched(rest, "/api/v1/pods", wake)
    threading.Thread(target=pod_names.serve, args=(pods,), daemon=True).start()
    threading.Thread(target=_end_with_input, daemon=True).start()
    (place / "controllers-ready").touch()
    while True:
        wake.wait(1.0)  # deadlines are no events
        wake.clear()
        for job in jobs.all():
            try:
                controller.reconcile(job)
            except _TROUBLE as error:
                print(f"{job['metadata']['name']}: {error}", file=sys.stderr, flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
