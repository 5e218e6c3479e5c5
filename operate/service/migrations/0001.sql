-- Texts are BYTES: they come from callers, and may hold anything. Times are
-- milliseconds since 1970 in UTC, 0 for none. Durations are milliseconds, too.

-- What bodies and schedule of this store are told from those of others by.
alter table retry_meta add column store_id BYTES not null default EMPTY;

create table retry_policies (
	tenant BYTES not null,
	policy_id BYTES not null,
	version bigint not null,
	content BYTES not null, -- JSON
	primary key (tenant, policy_id, version)
);

-- What changes comes first, and what may be long last.
create table retry_tasks (
	id SERIAL,
	version bigint not null default 1, -- whoever changes the row has read this one
	status smallint not null default 0, -- PENDING, IN_FLIGHT, SUCCEEDED, EXHAUSTED, CANCELLED
	attempt_number bigint not null default 0,
	next_attempt_at bigint not null,
	lease_until bigint not null default 0,
	visible bigint not null, -- how long a lease is
	created_at bigint not null,
	updated_at bigint not null,
	first_failed_at bigint not null default 0,
	budget_since bigint not null,
	prev_delay bigint not null default 0,
	last_status bigint not null default 0,
	attempts bigint not null default 0, -- rows in retry_attempts
	buried smallint not null default 0, -- 1 if its dead letter is confirmed
	task_id BYTES not null unique,
	identity BYTES not null unique, -- a hash of the tenant and the idempotency key
	content BYTES not null, -- a hash of what is called, and by which policy
	tenant BYTES not null,
	policy_id BYTES not null,
	policy_version bigint not null,
	idempotency_key BYTES not null,
	method BYTES not null,
	target_url BYTES not null,
	body_ref BYTES not null,
	last_error BYTES not null default EMPTY,
	headers BYTES not null, -- JSON
	body BYTES not null
);

-- Each has only the rows that somebody looks for, and the first two all that is shown
-- of waiting tasks, as there may be millions.
create index retry_tasks_waiting on retry_tasks (next_attempt_at, id, tenant) where status = 0;
create index retry_tasks_counts on retry_tasks (tenant, policy_id, created_at) where status = 0;
create index retry_tasks_leases on retry_tasks (lease_until, id) where status = 1;
create index retry_tasks_dead on retry_tasks (lease_until, id) where status = 3 and buried = 0;
create index retry_tasks_bodies on retry_tasks (body_ref) where body_ref <> EMPTY;
create index retry_tasks_over on retry_tasks (updated_at) where status > 1;
create index retry_tasks_ended on retry_tasks (tenant, policy_id, status) where status > 1;

create table retry_attempts (
	task bigint not null references retry_tasks (id) on delete cascade,
	n bigint not null,
	started_at bigint not null,
	duration bigint not null,
	response_status bigint not null,
	error_message BYTES not null,
	primary key (task, n)
);
