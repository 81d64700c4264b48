// Package devices speaks the protocol of Kubernetes' device plugins (v1beta1): it lets plugins register at a socket, hears from them
// which devices are there and healthy, and has them given to containers. It keeps on the disk who has which, so that neither
// its own end nor a plugin's gives a device to two. It must never choose a device for who has one already.
package devices
