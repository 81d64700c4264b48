// Package model holds the rules on Kubernetes types that every other package shares: what a pod effectively asks for,
// what a node offers, which quality-of-service class a pod has, which priorities are legal, and above all Check, the one
// function that decides whether a pod fits a node. The state machine rechecks plans with it, the scheduler places with
// it and explains with it, so the three can never disagree.
//
// Everything here is a pure function of its arguments. The package must never keep state, read a clock, log, or define a
// second version of a type that k8s.io/api already has.
package model
