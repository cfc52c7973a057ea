"""The shell around the scheduler core: who calls it, and what a slot looks like to a request."""

from dataplane.admission.owner import Admission, Limits
from dataplane.admission.permit import Ask, Permit

__all__ = ["Admission", "Ask", "Limits", "Permit"]
