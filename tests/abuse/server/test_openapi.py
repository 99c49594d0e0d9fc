"""schemathesis: requests made from the OpenAPI document, by a program that knows nothing else of the server."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from servers import running
from small_models import write_small_model

from bertworks.tasks.conll import tag_labels

PROGRAM = os.environ.get("SCHEMATHESIS", "")  # in an environment of its own: make test-abuse
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.abuses
@pytest.mark.abuse("schemathesis")
@pytest.mark.skipif(not Path(PROGRAM).is_file(), reason="SCHEMATHESIS does not name the program")
def test_the_document_and_the_server_agree(tmp_path, record_property):
    labels = list(tag_labels(("PER", "LOC")))
    folders = [
        write_small_model(tmp_path / "plain"),
        write_small_model(tmp_path / "classes", {"classify": 3}, labels=["x", "y", "z"]),
        write_small_model(tmp_path / "tags", {"tag": len(labels)}, labels=labels),
        write_small_model(tmp_path / "spans", {"span": 2}),
        write_small_model(tmp_path / "endings", {"choose": 1}),
    ]
    total = 0
    for some in ([folders[0]], folders[1:]):
        with running(*some, limits=["seconds=20"]) as server:
            ended = subprocess.run(
                [PROGRAM, "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", CHECKS,
                 "--max-examples", "300", "--seed", "1", "--no-color"],
                capture_output=True, text=True, timeout=900, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
                cwd=tmp_path,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stdout[-6_000:]
            total += int(re.search(r"([\d,]+) generated", ended.stdout)[1].replace(",", ""))
    record_property("trials", total)
    record_property("fault_note", f"schemathesis: {total:,} requests, no server error, every answer as documented")
