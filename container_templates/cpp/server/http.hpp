// As much of an HTTP/1.1 server as docs/protocol.md asks for. Requests of a connection may come before the last one is
// answered, which Debian's cpp-httplib loses.
#pragma once

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace http {

constexpr std::size_t max_body_bytes = std::size_t{1} << 30;
constexpr std::size_t max_head_bytes = 64 << 10;
/// Connections at a time; a container has 128 threads, and what comes on top waits.
constexpr std::ptrdiff_t max_connections = 96;

/// The client has closed its connection, and nobody reads the answer.
struct Gone {};

struct Request {
  std::string method;
  std::string path;
  std::string content_type;
  std::string body;
  int socket = -1;

  /// Whether the client has closed its connection, whatever else it has sent before.
  bool has_gone() const {
    pollfd watched{socket, POLLRDHUP, 0};
    return poll(&watched, 1, 0) > 0;
  }
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};

/// The path without percent-encoding.
inline std::string decode(const std::string &path) {
  std::string decoded;
  for (std::size_t at = 0; at < path.size(); at++) {
    const bool is_code = path[at] == '%' && at + 2 < path.size() && std::isxdigit(static_cast<unsigned char>(path[at + 1])) && std::isxdigit(static_cast<unsigned char>(path[at + 2]));
    decoded += is_code ? static_cast<char>(std::stoi(path.substr(at + 1, 2), nullptr, 16)) : path[at];
    if (is_code) at += 2;
  }
  return decoded;
}

/// A connection, closed when it goes.
class Connection {
public:
  explicit Connection(int socket) : socket_(socket) {}
  ~Connection() { close(socket_); }
  Connection(const Connection &) = delete;
  Connection &operator=(const Connection &) = delete;

  /// The next request; false at the end of the connection. std::invalid_argument says what is wrong with it.
  bool read(Request &request) {
    std::size_t end;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      if (received_.size() > max_head_bytes) throw std::invalid_argument("the head of a request is too long");
      if (!receive()) return false;
    }
    const std::string head = received_.substr(0, end + 2);
    received_.erase(0, end + 4);
    const auto first = head.find("\r\n");
    const auto space = head.find(' ');
    const auto second = head.find(' ', space + 1);
    if (space == std::string::npos || second == std::string::npos || second > first) throw std::invalid_argument("a request has no method and path");
    request = {head.substr(0, space), decode(head.substr(space + 1, second - space - 1)), "", "", socket_};
    std::size_t length = 0;
    for (std::size_t at = first + 2; at < head.size();) {
      const auto line_end = head.find("\r\n", at);
      const auto colon = std::min(head.find(':', at), line_end);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      const auto start = std::min(head.find_first_not_of(" \t:", colon), line_end);
      const std::string value = head.substr(start, line_end - start);
      at = line_end + 2;
      if (name == "content-type") request.content_type = value;
      const bool is_number = !value.empty() && value.size() < 12 && value.find_first_not_of("0123456789") == std::string::npos;
      if (name == "content-length") length = is_number ? std::stoull(value) : max_body_bytes + 1;
      // A body of pieces is not read.
      if (name == "transfer-encoding") length = max_body_bytes + 1;
      if (name == "expect") send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (length > max_body_bytes) throw std::invalid_argument("a request needs a Content-Length of at most 1 GiB");
    while (received_.size() < length) {
      if (!receive()) return false;
    }
    request.body = received_.substr(0, length);
    received_.erase(0, length);
    return true;
  }

  void write(const Response &response) {
    send("HTTP/1.1 " + std::to_string(response.status) + (response.status == 200 ? " OK" : " Error") + "\r\nContent-Type: " + response.content_type +
         "\r\nContent-Length: " + std::to_string(response.body.size()) + "\r\n\r\n" + response.body);
  }

private:
  bool receive() {
    char bytes[64 << 10];
    ssize_t count;
    do count = recv(socket_, bytes, sizeof bytes, 0);
    while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    received_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  void send(const std::string &bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      // The client has gone, which the next read tells.
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
  }

  int socket_;
  std::string received_;
};

class Server {
public:
  explicit Server(std::function<Response(const Request &)> answer) : answer_(std::move(answer)) {}

  /// Requests that are being answered.
  int running() const { return running_; }

  void listen_unix(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw std::invalid_argument("the path of the socket is too long");
    path.copy(address.sun_path, path.size());
    unlink(path.c_str());
    listen(reinterpret_cast<const sockaddr *>(&address), sizeof address);
  }

  void listen_tcp(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    listen(reinterpret_cast<const sockaddr *>(&address), sizeof address);
  }

private:
  /// Counts a request for as long as it is being answered.
  struct Running {
    explicit Running(std::atomic<int> &count) : count(count) { count++; }
    ~Running() { count--; }
    Running(const Running &) = delete;
    Running &operator=(const Running &) = delete;
    std::atomic<int> &count;
  };

  void listen(const sockaddr *address, socklen_t size) {
    const int listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener < 0 || bind(listener, address, size) != 0 || ::listen(listener, 128) != 0) throw std::invalid_argument(std::string("cannot listen: ") + std::strerror(errno));
    // A Unix socket has no such option, and says so.
    std::thread([this, listener] {
      while (true) {
        room_.acquire();
        const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (socket < 0) {
          room_.release();
          usleep(10'000);
          continue;
        }
        const int on = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        std::thread([this, socket] {
          serve(socket);
          room_.release();
        }).detach();
      }
    }).detach();
  }

  void serve(int socket) {
    Connection connection(socket);
    Request request;
    try {
      while (connection.read(request)) {
        const Running running(running_);
        connection.write(answer_(request));
      }
    } catch (const Gone &) {
    } catch (const std::invalid_argument &error) {
      connection.write({400, "application/json", std::string("{\"error\":{\"kind\":\"protocol_violation\",\"message\":\"") + error.what() + "\"}}"});
    }
  }

  std::function<Response(const Request &)> answer_;
  std::counting_semaphore<max_connections> room_{max_connections};
  std::atomic<int> running_ = 0;
};

} // namespace http
