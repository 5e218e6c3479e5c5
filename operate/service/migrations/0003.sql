-- The W3C traceparent of the latest call, where the service has a Tracer.
alter table retry_tasks add column last_span bytea not null default '';
