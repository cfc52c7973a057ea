"""Whether usage was estimated, whether a term ends by the calendar; no health of endpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    # Of rows that are there already it is not known, and none is purged on a guess.
    _add_flag("usage_requests", "estimated")
    _add_flag("budget_usage", "calendar")
    with op.batch_alter_table("endpoints") as endpoints:
        endpoints.drop_column("health")


def downgrade() -> None:
    with op.batch_alter_table("endpoints") as endpoints:
        endpoints.add_column(
            sa.Column("health", sa.String(16), nullable=False, server_default="unknown")
        )
    with op.batch_alter_table("endpoints") as endpoints:
        endpoints.alter_column("health", server_default=None)
    for table, column in (("budget_usage", "calendar"), ("usage_requests", "estimated")):
        with op.batch_alter_table(table) as altered:
            altered.drop_column(column)


def _add_flag(table: str, column: str) -> None:
    """A column that is false in every row that is there."""
    with op.batch_alter_table(table) as altered:
        altered.add_column(
            sa.Column(column, sa.Boolean(), nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table(table) as altered:
        altered.alter_column(column, server_default=None)
