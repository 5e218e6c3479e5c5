// Package web has the parts that the servers of the command redrive share: a
// bound on connections, certificates that can be replaced while a server runs,
// and a cheap check of health.
package web
