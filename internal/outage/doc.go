// Package outage lets a fleet of Consumers go through an outage of the
// dependency that their handlers call, and measures what the dependency and
// the messages bear. The Consumers are real, and so is their broker; only the
// dependency is a model.
//
// In a bubble of testing/synctest, with brokers/memory, the time is virtual.
package outage
