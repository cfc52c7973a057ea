"""Policy, its audit log and revision; usage and term budgets."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None

ID = sa.String(36)
NAME = sa.String(200)
URL = sa.String(2048)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    create_tenancy()
    create_models()
    create_audit()
    create_usage()
    insert_what_always_exists()


def downgrade() -> None:
    for table in (
        "budget_usage",
        "usage_requests",
        "audit_log",
        "endpoints",
        "model_names",
        "models",
        "api_keys",
        "tenants",
        "groups",
        "revision",
    ):
        op.drop_table(table)


def written() -> list[sa.Column[object]]:
    """When a policy row was made and last changed, and by which change."""
    return [
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
    ]


def create_tenancy() -> None:
    op.create_table(
        "groups",
        sa.Column("name", NAME, nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        *written(),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_groups")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("group_name", NAME, nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("budget_period", sa.String(16), nullable=False),
        sa.Column("budget_started_at", MOMENT, nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("allowed_models", sa.JSON(), nullable=True),
        *written(),
        sa.ForeignKeyConstraint(
            ["group_name"],
            ["groups.name"],
            name=op.f("fk_tenants_group_name_groups"),
            ondelete="RESTRICT",
            onupdate="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_index(op.f("ix_tenants_group_name"), "tenants", ["group_name"])
    op.create_table(
        "api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("budget_period", sa.String(16), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("last_used_at", MOMENT, nullable=True),
        *written(),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_api_keys_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"])


def create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("upstream_model", NAME, nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("admission_weight", sa.Integer(), nullable=False),
        sa.Column("capacity", sa.JSON(), nullable=True),
        sa.Column("load_balancing", sa.String(32), nullable=False),
        sa.Column("session_affinity", sa.JSON(), nullable=False),
        sa.Column("request_timeout_secs", sa.Double(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        *written(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_table(
        "model_names",
        sa.Column("name", NAME, nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        of_model("model_names"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
    )
    op.create_index(op.f("ix_model_names_model_id"), "model_names", ["model_id"])
    op.create_table(
        "endpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.Column("url", URL, nullable=False),
        sa.Column("sealed_api_key", sa.Text(), nullable=True),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("health", sa.String(16), nullable=False),
        *written(),
        of_model("endpoints"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
        sa.UniqueConstraint("model_id", "url", name=op.f("uq_endpoints_model_id_url")),
    )
    op.create_index(op.f("ix_endpoints_model_id"), "endpoints", ["model_id"])


def of_model(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["model_id"], ["models.id"], name=op.f(f"fk_{table}_model_id_models"), ondelete="CASCADE"
    )


def create_audit() -> None:
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("actor", NAME, nullable=False),
        sa.Column("client", sa.String(64), nullable=True),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject_id", NAME, nullable=False),
        sa.Column("subject_name", URL, nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_revision_id"), "audit_log", ["revision", "id"])
    op.create_index(op.f("ix_audit_log_kind_subject_id"), "audit_log", ["kind", "subject_id"])


def create_usage() -> None:
    op.create_table(
        "usage_requests",
        sa.Column("id", ID, nullable=False),
        sa.Column("request_id", NAME, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("group_name", NAME, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("tenant", NAME, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("admission", sa.String(16), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("partial", sa.Boolean(), nullable=False),
        sa.Column("queue_ms", sa.Double(), nullable=False),
        sa.Column("ttfb_ms", sa.Double(), nullable=True),
        sa.Column("duration_ms", sa.Double(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("session", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_requests")),
    )
    for columns in (
        ["started_at", "id"],
        ["tenant_id", "started_at"],
        ["key_id", "started_at"],
        ["model", "started_at"],
    ):
        name = f"ix_usage_requests_{'_'.join(columns)}"
        op.create_index(op.f(name), "usage_requests", columns)
    op.create_table(
        "budget_usage",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("scope_id", ID, nullable=False),
        sa.Column("period_started_at", MOMENT, nullable=False),
        sa.Column("committed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint(
            "scope", "scope_id", "period_started_at", name=op.f("pk_budget_usage")
        ),
    )


def insert_what_always_exists() -> None:
    """The revision counter, and the group of tenants that name none."""
    connection = op.get_bind()
    moment = sa.Column("created_at", MOMENT), sa.Column("updated_at", MOMENT)
    number = sa.BigInteger()
    counter = sa.table("revision", sa.column("id"), sa.column("value", number))
    connection.execute(counter.insert().values(id=1, value=0))
    groups = sa.table(
        "groups", sa.column("name"), sa.column("weight"), *moment, sa.column("revision", number)
    )
    now = datetime.now(UTC)
    if connection.dialect.name == "sqlite":
        now = now.replace(tzinfo=None)
    connection.execute(
        groups.insert().values(
            name="default", weight=100, created_at=now, updated_at=now, revision=0
        )
    )
