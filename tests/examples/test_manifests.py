"""There is no Slurm and no Kubernetes here: their files are checked with what they would be parsed by."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SBATCH = EXAMPLES / "slurm/train.sbatch"
KUBERNETES = "1.31"  # whose schemas are used; older than the newest that kubernetes-validate has


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install -e '.[examples]'")
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text(encoding="utf-8")))


def complaints(document: Any) -> str:
    """What Kubernetes' own schema, strictly read, says against a document."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs it: pip install -e '.[examples]'")
    try:
        validate.validate(document, KUBERNETES, strict=True)
    except validate.ValidationError as error:
        return str(error.message)
    return ""


def test_the_indexed_job_fits_kubernetes_schemas() -> None:
    service, policy, job = documents("indexed-job.yaml")
    assert [each["kind"] for each in (service, policy, job)] == ["Service", "NetworkPolicy", "Job"]
    assert [complaints(each) for each in (service, policy, job)] == ["", "", ""]
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env["WORLD_SIZE"] == str(job["spec"]["completions"])
    assert env["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert container["ports"][0]["containerPort"] == int(env["TAILCUT_PORT"])
    allowed = [port["port"] for port in policy["spec"]["ingress"][0]["ports"]]
    assert int(env["TAILCUT_PORT"]) in allowed


def test_the_pods_of_the_pytorchjob_fit_kubernetes_schemas() -> None:
    """The operator's own kind has no schema offline: its few fields are checked here, its pods fully."""
    (job,) = documents("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(job["spec"]) == {"runPolicy", "pytorchReplicaSpecs"}
    assert set(job["spec"]["pytorchReplicaSpecs"]) == {"Master", "Worker"}
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
    for kind, replica in job["spec"]["pytorchReplicaSpecs"].items():
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind.lower()}, **replica["template"]}
        assert complaints(pod) == ""
        assert [each["name"] for each in replica["template"]["spec"]["containers"]] == ["pytorch"]


def test_a_wrong_manifest_is_found() -> None:
    service, _, job = documents("indexed-job.yaml")
    service["spec"]["clusterIp"] = "None"
    assert "clusterIp" in complaints(service)
    job["spec"]["completions"] = "four"
    assert complaints(job)


def test_the_batch_script_parses_and_asks_for_what_exists() -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    checked = subprocess.run(["bash", "-n", str(SBATCH)], capture_output=True, text=True, timeout=10)
    assert (checked.returncode, checked.stderr) == (0, "")
    text = SBATCH.read_text(encoding="utf-8")
    options = re.findall(r"^#SBATCH --([a-z-]+)=\S+$", text, re.MULTILINE)
    assert set(options) == {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "output"}
    assert text.index("#SBATCH") < text.index("set -euo"), (
        "Slurm reads its lines only before the first command"
    )
    for path in re.findall(r"examples/\S+\.py", text):
        assert (EXAMPLES.parent / path).exists()


def test_torchrun_takes_the_options_of_the_batch_script() -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    from torch.distributed.run import get_args_parser

    command = SBATCH.read_text(encoding="utf-8").split("srun torchrun", 1)[1].replace("\\\n", " ").split()
    parsed = get_args_parser().parse_args([word.strip('"').replace("$", "") for word in command])
    assert parsed.training_script == "examples/train_ddp.py"
    assert parsed.training_script_args == ["--door", "backend"]
