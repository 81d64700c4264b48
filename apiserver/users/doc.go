// Package users says who bears a token that is not of a service account: by a file of
// tokens, by issuers of JSON web tokens, by a webhook. Nothing of it is replicated: it is
// each server's configuration, read again when it changes.
//
// It must never say that somebody is a part of Berth itself, and never wait without a
// bound for somebody who does not answer.
package users
