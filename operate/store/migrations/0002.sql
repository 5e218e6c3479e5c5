-- Letters of a cluster in the order of lists. The first index had them by state.
drop index letters_cluster;
create index letters_cluster on letters (cluster, at, id);
