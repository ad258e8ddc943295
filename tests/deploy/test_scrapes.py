"""Metrics of engines and nodes that the agent's Collector keeps of its scrapes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

AGENT = Path(__file__).parents[2] / "collector_config" / "agent.yaml"


def jobs() -> list[dict[str, Any]]:
    config = yaml.safe_load(AGENT.read_text(encoding="utf-8"))
    scrapes = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert isinstance(scrapes, list)
    return scrapes


def kept(job: dict[str, Any], name: str) -> bool:
    rules = [one for one in job["metric_relabel_configs"] if one["action"] == "keep"]
    return all(re.fullmatch(str(one["regex"]), name) for one in rules)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("vllm", "vllm:num_requests_waiting"),
        ("sglang", "sglang:num_queue_reqs"),
        ("dcgm", "DCGM_FI_DEV_GPU_UTIL"),
        ("nccl", "nccl_bus_bandwidth_gbs"),
        ("nccl", "nccl_p2p_bus_bandwidth_gbs"),
        ("ray", "ray_tasks"),
    ],
)
def test_what_a_diagnosis_or_a_chart_needs_is_kept_by_one_job(job: str, name: str) -> None:
    assert [one["job_name"] for one in jobs() if kept(one, name)] == [job]


@pytest.mark.parametrize("name", ["node_load1", "nccl_collective_exec_time_microseconds"])
def test_the_rest_of_a_node_exporter_is_left_out(name: str) -> None:
    assert [one["job_name"] for one in jobs() if kept(one, name)] == []


def test_labels_that_name_a_job_or_a_node_are_no_part_of_a_bandwidth_s_key() -> None:
    """The others tell series apart: communicators of one job may differ in any of them."""
    (nccl,) = [one for one in jobs() if one["job_name"] == "nccl"]
    (drop,) = [one for one in nccl["metric_relabel_configs"] if one["action"] == "labeldrop"]
    labels = ["version", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks"]
    dropped = [label for label in labels if re.fullmatch(str(drop["regex"]), label)]
    assert dropped == ["version", "slurm_job_id", "node"]
