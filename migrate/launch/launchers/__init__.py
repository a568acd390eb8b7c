"""Writers of the launchers' own files, one file each."""

from __future__ import annotations

from migrate.launch.launchers.dstack import DSTACK
from migrate.launch.launchers.gcloud import GCLOUD
from migrate.launch.launchers.gke import GKE
from migrate.launch.launchers.jobman import JOBMAN
from migrate.launch.launchers.launcher import Launcher
from migrate.launch.launchers.skypilot import SKYPILOT
from migrate.launch.launchers.xpk import XPK

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher for launcher in (SKYPILOT, GKE, XPK, GCLOUD, JOBMAN, DSTACK)
}
