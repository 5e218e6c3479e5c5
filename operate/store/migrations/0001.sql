-- Texts are BYTES: they come from messages, and may hold anything. Times are
-- milliseconds since 1970 in UTC, 0 for none. The columns called as the states
-- count letters, and change in the transaction in which the letters do.

-- The last number given to a row of each kind: no number is given twice.
create table ids (
	name BYTES primary key,
	last bigint not null
);

create table topics (
	id KEY,
	hash BYTES not null unique, -- of broker, source and topic
	broker BYTES not null,
	source BYTES not null,
	topic BYTES not null,
	COUNTERS,
	bytes bigint not null default 0,
	receipt_at bigint not null default 0 -- the last one that was believed
);

create table clusters (
	id KEY,
	hash BYTES not null unique, -- of all that its letters have in common
	topic bigint not null references topics (id),
	consumers BYTES not null, -- the consumer group
	reason BYTES not null,
	class BYTES not null,
	format BYTES not null,
	error_type BYTES not null,
	fingerprint BYTES not null,
	created_at bigint not null,
	first_at bigint not null, -- times of death
	last_at bigint not null,
	COUNTERS,
	bytes bigint not null default 0
);
create index clusters_topic on clusters (topic);
create index clusters_created on clusters (created_at);
create index clusters_last on clusters (last_at, id);
create index clusters_open on clusters ((OPEN), id);

create table letters (
	id KEY,
	identity BYTES unique, -- equal letters merge; null for what merges with nothing
	cluster bigint not null references clusters (id),
	topic bigint not null, -- of the cluster
	state smallint not null,
	at bigint not null, -- what lists go by: the time of death, or of collecting if that is unknown or earlier
	position BYTES not null,
	message_id BYTES not null,
	message_key BYTES not null,
	error_code BYTES not null,
	error_text BYTES not null,
	rule BYTES not null,
	attempts bigint not null,
	redrives bigint not null,
	abandoned bigint not null,
	stub smallint not null,
	size bigint not null,
	dead_at bigint not null,
	dead_by BYTES not null,
	first_failed_at bigint not null,
	published_at bigint not null,
	collected_at bigint not null,
	changed_at bigint not null,
	changes bigint not null default 0, -- rows in changes, ever
	previous bigint not null default 0,
	next bigint not null default 0,
	sends bigint not null default 0,
	token BYTES not null default EMPTY, -- of the last send
	failed smallint not null default 0, -- 1 if that failed at first
	failed_class BYTES not null default EMPTY, -- and how
	wave bigint not null default 0, -- the last one that took it
	was smallint not null default 0, -- the state before it was discarded
	note BYTES not null default EMPTY
);
create index letters_cluster on letters (cluster, state, at, id);
create index letters_at on letters (at, id, state, cluster);
-- In blocks, so that what is collected together is together here, too.
create index letters_message on letters ((id / 4096), message_id, at, id);
create index letters_collected on letters (topic, at) where state = 0;
create index letters_wave on letters (wave, state, at, id) where wave > 0;
create index letters_failing on letters (wave, failed_class) where failed = 1 and state in (2, 3, 5);
create index letters_ended on letters (state, changed_at) where state in (4, 6, 8);

-- What was received, and what it was taken for. A body of its own, and what a
-- body has beyond its first bytes, is in parts.
create table contents (
	letter KEY references letters (id) on delete cascade,
	raw BYTES not null,
	entry BYTES not null,
	body BYTES not null,
	own smallint not null -- 1 if the body of the entry is another
);

create table parts (
	letter bigint not null references letters (id) on delete cascade,
	own smallint not null, -- 1 for the body of the entry
	n bigint not null,
	data BYTES not null,
	primary key (letter, own, n)
);

-- Who did what, and why.
create table acts (
	id KEY,
	at bigint not null,
	who BYTES not null,
	command BYTES not null,
	reason BYTES not null,
	what BYTES not null,
	job bigint not null,
	letters bigint not null default 0 -- that it changed
);

create table changes (
	letter bigint not null references letters (id) on delete cascade,
	n bigint not null,
	at bigint not null,
	was smallint not null,
	state smallint not null,
	act bigint not null, -- 0 if nobody asked for it
	note BYTES not null,
	primary key (letter, n)
);

create table jobs (
	id KEY,
	filter BYTES not null,
	spec BYTES not null,
	state smallint not null,
	act bigint not null, -- that created it
	note BYTES not null default EMPTY,
	wave bigint not null, -- its number
	at bigint not null default -1, -- the last letter that was looked at
	letter bigint not null default 0,
	owner BYTES not null default EMPTY, -- of the lease
	until bigint not null default 0,
	created_at bigint not null,
	changed_at bigint not null,
	ended_at bigint not null default 0
);

-- The columns called as the states count the letters that a wave took, as they
-- are now, until another wave takes them.
create table waves (
	id KEY,
	job bigint not null references jobs (id) on delete cascade,
	n bigint not null,
	since bigint not null,
	resumed smallint not null default 0, -- 1 if it began when the job was resumed
	sent_at bigint not null default 0, -- the last confirm of a broker
	COUNTERS,
	failed bigint not null default 0, -- letters that failed at first
	unique (job, n)
);

create index jobs_unfinished on jobs (id) where ended_at = 0;
create index waves_on_their_way on waves (job) where sent + sending > 0;

create table skips (
	job bigint not null references jobs (id) on delete cascade,
	reason BYTES not null,
	letters bigint not null,
	primary key (job, reason)
);

-- What was written to see whether there is room for it; empty otherwise.
create table room (data BYTES not null);
