-- The queue of `gpuchaos notify`. Times are epoch seconds.
CREATE TABLE IF NOT EXISTS position (topic TEXT, partition INTEGER, next INTEGER, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS experiment (cluster TEXT, id TEXT, state TEXT, PRIMARY KEY (cluster, id));
-- What was said last about each alert and notice; `message` is the alert as it stands.
CREATE TABLE IF NOT EXISTS told (key TEXT PRIMARY KEY, told TEXT, firing INTEGER, message TEXT, changed REAL);
CREATE TABLE IF NOT EXISTS outbox (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT, key TEXT, kind TEXT, message TEXT, grouping TEXT, labels TEXT,
  due REAL, made REAL, tries INTEGER DEFAULT 0, batch TEXT, dead REAL, reason TEXT DEFAULT ''
);
CREATE INDEX IF NOT EXISTS outbox_of ON outbox (receiver, dead, seq);
CREATE TABLE IF NOT EXISTS receiver (name TEXT PRIMARY KEY, disabled TEXT, reason TEXT, patience REAL DEFAULT 0);
CREATE TABLE IF NOT EXISTS silence (
  receiver TEXT, experiment TEXT, silence TEXT, starts REAL, PRIMARY KEY (receiver, experiment)
);
