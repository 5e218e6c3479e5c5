-- Texts are bytea: they come from messages, and may hold anything. Times are
-- milliseconds since 1970 in UTC, 0 for none. The columns called as the states
-- count letters, and change in the transaction in which the letters do.

-- The last number given to a row of each kind: no number is given twice.
create table ids (
	name bytea primary key,
	last bigint not null
);

create table topics (
	id bigint primary key,
	hash bytea not null unique, -- of broker, source and topic
	broker bytea not null,
	source bytea not null,
	topic bytea not null,
	collected bigint not null default 0,
	queued bigint not null default 0,
	sending bigint not null default 0,
	sent bigint not null default 0,
	confirmed bigint not null default 0,
	unknown bigint not null default 0,
	returned bigint not null default 0,
	skipped bigint not null default 0,
	discarded bigint not null default 0,
	bytes bigint not null default 0,
	receipt_at bigint not null default 0 -- the last one that was believed
);

create table clusters (
	id bigint primary key,
	hash bytea not null unique, -- of all that its letters have in common
	topic bigint not null references topics (id),
	consumers bytea not null, -- the consumer group
	reason bytea not null,
	class bytea not null,
	format bytea not null,
	error_type bytea not null,
	fingerprint bytea not null,
	created_at bigint not null,
	first_at bigint not null, -- times of death
	last_at bigint not null,
	collected bigint not null default 0,
	queued bigint not null default 0,
	sending bigint not null default 0,
	sent bigint not null default 0,
	confirmed bigint not null default 0,
	unknown bigint not null default 0,
	returned bigint not null default 0,
	skipped bigint not null default 0,
	discarded bigint not null default 0,
	bytes bigint not null default 0
);
create index clusters_topic on clusters (topic);
create index clusters_created on clusters (created_at);
create index clusters_last on clusters (last_at, id);
create index clusters_open on clusters ((collected + queued + sending + sent + unknown + skipped), id);

create table letters (
	id bigint primary key,
	identity bytea unique, -- equal letters merge; null for what merges with nothing
	cluster bigint not null references clusters (id),
	topic bigint not null, -- of the cluster
	state smallint not null,
	at bigint not null, -- what lists go by: the time of death, or of collecting if that is unknown or earlier
	position bytea not null,
	message_id bytea not null,
	message_key bytea not null,
	error_code bytea not null,
	error_text bytea not null,
	rule bytea not null,
	attempts bigint not null,
	redrives bigint not null,
	abandoned bigint not null,
	stub smallint not null,
	size bigint not null,
	dead_at bigint not null,
	dead_by bytea not null,
	first_failed_at bigint not null,
	published_at bigint not null,
	collected_at bigint not null,
	changed_at bigint not null,
	changes bigint not null default 0, -- rows in changes, ever
	previous bigint not null default 0,
	next bigint not null default 0,
	sends bigint not null default 0,
	token bytea not null default '', -- of the last send
	failed smallint not null default 0, -- 1 if that failed at first
	failed_class bytea not null default '', -- and how
	wave bigint not null default 0, -- the last one that took it
	was smallint not null default 0, -- the state before it was discarded
	note bytea not null default ''
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
	letter bigint primary key references letters (id) on delete cascade,
	raw bytea not null,
	entry bytea not null,
	body bytea not null,
	own smallint not null -- 1 if the body of the entry is another
);

create table parts (
	letter bigint not null references letters (id) on delete cascade,
	own smallint not null, -- 1 for the body of the entry
	n bigint not null,
	data bytea not null,
	primary key (letter, own, n)
);

-- Who did what, and why.
create table acts (
	id bigint primary key,
	at bigint not null,
	who bytea not null,
	command bytea not null,
	reason bytea not null,
	what bytea not null,
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
	note bytea not null,
	primary key (letter, n)
);

create table jobs (
	id bigint primary key,
	filter bytea not null,
	spec bytea not null,
	state smallint not null,
	act bigint not null, -- that created it
	note bytea not null default '',
	wave bigint not null, -- its number
	at bigint not null default -1, -- the last letter that was looked at
	letter bigint not null default 0,
	owner bytea not null default '', -- of the lease
	until bigint not null default 0,
	created_at bigint not null,
	changed_at bigint not null,
	ended_at bigint not null default 0
);

-- The columns called as the states count the letters that a wave took, as they
-- are now, until another wave takes them.
create table waves (
	id bigint primary key,
	job bigint not null references jobs (id) on delete cascade,
	n bigint not null,
	since bigint not null,
	resumed smallint not null default 0, -- 1 if it began when the job was resumed
	sent_at bigint not null default 0, -- the last confirm of a broker
	collected bigint not null default 0,
	queued bigint not null default 0,
	sending bigint not null default 0,
	sent bigint not null default 0,
	confirmed bigint not null default 0,
	unknown bigint not null default 0,
	returned bigint not null default 0,
	skipped bigint not null default 0,
	discarded bigint not null default 0,
	failed bigint not null default 0, -- letters that failed at first
	unique (job, n)
);

create index jobs_unfinished on jobs (id) where ended_at = 0;
create index waves_on_their_way on waves (job) where sent + sending > 0;

create table skips (
	job bigint not null references jobs (id) on delete cascade,
	reason bytea not null,
	letters bigint not null,
	primary key (job, reason)
);

-- What was written to see whether there is room for it; empty otherwise.
create table room (data bytea not null);
