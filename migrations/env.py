"""What alembic runs for each command. The database is the one the settings name."""

from __future__ import annotations

import asyncio

from alembic import context

from migrations import schema
from shared import database
from shared.settings import StorageSettings, load


async def connect_and_run() -> None:
    url = load(StorageSettings).database_url
    engine = database.create_migration_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(schema.run)
    await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("migrations need a database: they are not written out as SQL")
if (given := context.config.attributes.get("connection")) is not None:
    schema.run(given)
else:
    asyncio.run(connect_and_run())
