-- The size of a body above 16 KiB, wherever it is kept, for quotas; 0 for others, and
-- for tasks that are older than this column.
alter table retry_tasks add column body_size bigint not null default 0;
create index retry_tasks_sizes on retry_tasks (tenant, status, body_ref, body_size) where body_size > 0;

-- The largest version of policies that were deleted. New ones begin above it, so that
-- a version never stands for two policies.
alter table retry_meta add column last_version bigint not null default 0;
