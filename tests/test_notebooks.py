"""The notebooks of the docs run from top to bottom, and are found from there."""

import pathlib

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and all(cell.execution_count for cell in cells)


def test_there_is_one_for_each_job_and_the_page_links_to_it():
    page = (FOLDER / "index.md").read_text()
    assert len(NOTEBOOKS) >= 4 and all(f"({path.name})" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_holds_no_error_and_no_folder_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    assert outputs and all(o.output_type != "error" for o in outputs)
    assert "/tmp/" not in path.read_text() and "/home/" not in path.read_text()
