# See server-1.hcl.

name      = "server-2"
data_dir  = "/var/lib/berth"
bind_addr = "10.0.0.2"
join      = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

server {
  enabled          = true
  bootstrap_expect = 3
}

gossip {
  encryption_key = "make one with: berth operator gossip-key"
}

tls {
  ca_file   = "/etc/berth/tls/ca.pem"
  cert_file = "/etc/berth/tls/server-server-2.pem"
  key_file  = "/etc/berth/tls/server-server-2-key.pem"
}
