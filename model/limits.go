package model

// What an object may have, at the API and in what a worker says of its node.
const (
	MaxLabels        = 128 // and annotations that a worker writes
	MaxConditions    = 64  // of a node
	MaxNodeResources = 256
)
