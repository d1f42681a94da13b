"""What the report itself has to say of a run beside its figures: notes, the client's health, the limit."""

NOTES: dict[str, str] = {
    "at step {n}": "（步骤 {n}）",
    "step {n}": "步骤 {n}",
    "{n} steps": "{n} 个步骤",
    "{n} requests/s": "{n} 请求/秒",
    # the run
    "a fault ended the run: {what:any}": "运行因故障结束：{what}",
    "the run did not get to its end: what is shown is what was measured until then": (
        "运行未到结束：所示为截至当时的测量结果"
    ),
    "{n} half-written line(s) at the end of the log dropped": "丢弃了日志末尾 {n} 行不完整的记录",
    "{n} of {m} other kinds": "{n} 次，属其余 {m} 种",
    # steadiness
    "in {steps:said} of {all}, {what:said}": "{steps}（共 {all} 个步骤）：{what}",
    "throughput drifted: its intervals are too narrow, and only runs at other times tell the true spread": (
        "吞吐量漂移，其置信区间偏窄；只有在其他时间再次运行才能看出真实的离散程度"
    ),
    "now and then nothing arrived for many times longer than usual: the intervals are too narrow for that": (
        "偶有远超平常的停顿，其间没有任何输出到达；置信区间因此偏窄"
    ),
    "requests left in waves, as with exactly equal lengths: latencies depend on how the step began; lengths that vary"
    " by 10 % mend it": (
        "请求成波次同步完成（长度完全相同时会如此），延迟取决于步骤如何开始；让长度有 10% 的变化即可消除"
    ),
    "output throughput at {loads} in flight differs by {by} from the run before, {name}: no change is proven": (
        "并发 {loads} 时的输出吞吐量与上一次运行（{name}）相差 {by}：未证实有变化"
    ),
    "not steady between runs: output throughput at {loads} in flight differs by {by} from the run before, {name}, and"
    " neither tells of a change: server or machine is not what it was, and each interval here is that of its own run": (
        "两次运行之间不稳定：并发 {loads} 时的输出吞吐量与上一次运行（{name}）相差 {by}，而两次运行均未说明有何改动："
        "服务器或机器已与之前不同，此处的每个置信区间只适用于本次运行"
    ),
    # answers and lengths
    "{n} of {m} answer(s) shorter than asked{how:said}": "{m} 个回答中有 {n} 个短于要求{how}",
    "{n} tokens on average where {m} were asked for ({share})": "平均 {n} 个 token，要求 {m} 个（{share}）",
    "{n} of {m} answer(s) with more output tokens, by the server's count, than were asked for": (
        "{m} 个回答中有 {n} 个的输出 token 数（服务器计数）多于要求"
    ),
    "a step's prompts were {off} off the length asked for, by the server's count": (
        "有步骤的提示长度（服务器计数）与要求相差 {off}"
    ),
    "the {side:said}s that step {step} asked for have {n} tokens {where:said} of {requests} requests, where the"
    " workload's have {own} ({off}, beyond chance)": (
        "步骤 {step} 的 {requests} 个请求所要求的{side}长度，其{where}为 {n} 个 token，而工作负载为 {own} 个"
        "（{off}，超出随机波动）"
    ),
    "input": "输入",
    "output": "输出",
    "in the mean": "均值",
    "at {p}": "{p} ",
    "{n} of {m} answer(s) without the usage that was asked for: tokens counted otherwise": (
        "{m} 个回答中有 {n} 个未返回所要求的 usage：token 数以其他方式计得"
    ),
    "{n} of {m} answer(s) not streamed: their TTFT, TPOT and ITL are n/a (not streaming)": (
        "{m} 个回答中有 {n} 个非流式：没有 TTFT、TPOT 和 ITL"
    ),
    "{n} of {m} answer(s) with events that are not JSON; these events were passed over": (
        "{m} 个回答中有 {n} 个含非 JSON 事件；这些事件已跳过"
    ),
    "sent again {n} time(s) after a 429 or 503, and {m} of {all} answer(s) came only then: latencies run from the first"
    " send": "收到 429 或 503 后重发 {n} 次，{all} 个回答中有 {m} 个重发后才得到：延迟从首次发送算起",
    "up to {share} of a step's output tokens placed in its window by estimate": (
        "单个步骤中最多 {share} 的输出 token 按估计归入窗口"
    ),
    "the requests in flight and their times disagree by {share} (Little's law)": (
        "并发请求数与请求时间不符，相差 {share}（利特尔法则）"
    ),
    "{n} of {m} answer(s) came in bursts, up to {events} events at once every {ms} ms: a proxy that buffers stands"
    " before the server (nginx: proxy_buffering off), or the server itself writes so; TTFT and ITL tell of the"
    " bursts, not of the model": (
        "{m} 个回答中有 {n} 个成批到达，每 {ms} ms 一批、一次最多 {events} 个事件：服务器前有带缓冲的代理"
        "（nginx：proxy_buffering off），或服务器自身如此写出；TTFT 与 ITL 反映的是批，而非模型"
    ),
    "failures break {names} at {loads}: a failed request counts as infinitely late, which the latencies of the"
    " answered ones do not show": (
        "负载 {loads} 下因失败违反 {names}：失败的请求视为无限迟，已完成请求的延迟不反映这一点"
    ),
    # open loops
    "the limit of {most} in flight held back {n} request(s){sent:said}; TTFT and E2E from schedule include the wait,"
    " the others do not": (
        "并发上限 {most} 使 {n} 个请求延后发送{sent}；从计划时刻起算的 TTFT 与 E2E 包含该等待，其余不包含"
    ),
    "{n} of the {m} requests/s asked for were sent": "要求 {m} 请求/秒，实际发送 {n} 请求/秒",
    "{n:said} due in the window could not be sent by its end, and never {was}": (
        "窗口内应发送的 {n} 个请求到窗口结束仍未能发送，此后也未发送"
    ),
    "{n} arrival(s)": "{n}",
    "the server completed {n} of {m} requests/s sent: it does not keep up, so that latencies grow with the length of"
    " the step": "服务器完成 {n} 请求/秒，而发送为 {m} 请求/秒：服务器跟不上，延迟随步骤时长增长",
    # the prefix cache
    "cached share{where:said}: {expected} expected of what was sent, {seen} by the server: {why:said}": (
        "缓存占比{where}：按发送内容预期 {expected}，服务器报告 {seen}：{why}"
    ),
    "its prefix cache is off, too small for what is in flight, or its block is larger than was taken": (
        "其前缀缓存未开启、对当前并发过小，或块大小大于所取值"
    ),
    "other traffic, or an earlier run with --same-text, has warmed its prefix cache": (
        "其他流量，或先前使用 --same-text 的运行，已预热其前缀缓存"
    ),
    "up to {share} of a step's prompt tokens came from the server's prefix cache, though these prompts have nothing in"
    " common: other traffic, or a text that the server puts before each": (
        "单个步骤中最多 {share} 的提示 token 来自服务器的前缀缓存，而这些提示并无共同内容：有其他流量，"
        "或服务器在每个提示前加入了固定文本"
    ),
    "up to {share} of a step's prompt tokens came from the server's prefix cache": (
        "单个步骤中最多 {share} 的提示 token 来自服务器的前缀缓存"
    ),
    # the server's own count
    "the server held {n} requests in the mean where {m} were in flight from here{where:said} (Little's"
    " law{others:said}): {causes:said}": (
        "服务器内平均有 {n} 个请求{where}，而本机的并发为 {m}（利特尔法则{others}）：{causes}"
    ),
    "so at {n} other steps": "另有 {n} 个步骤如此",
    "so at another step": "另有一个步骤如此",
    # the client
    "the limit at {load:said}: {what:said} → {remedy:said}": "{load} 时客户端是瓶颈：{what} → {remedy}",
    "the limit at {load:said} at first, which was measured again: {what:said}": (
        "{load} 首次测量时客户端是瓶颈，已重新测量：{what}"
    ),
    "{what:said} → {remedy:said}": "{what} → {remedy}",
    "{n} of {m} kernel stamps contradicted the clock": "{m} 个内核时间戳中有 {n} 个与时钟矛盾",
    "find what steps this machine's clock, and measure when it is steady": "找出是什么在拨动本机时钟，待其稳定后再测量",
    "the client was ready to run, but without a CPU, for {share} of the time": (
        "客户端有 {share} 的时间处于就绪状态却没有分到 CPU"
    ),
    "the client used {share} of a CPU": "客户端占用了一个 CPU 的 {share}",
    "requests were sent {late:said}, where a request takes {ms} (median)": (
        "请求发送延后{late}，而单个请求耗时 {ms}（中位数）"
    ),
    "slots were refilled {late:said}, where a request takes {ms} (median)": (
        "空位补充延后{late}，而单个请求耗时 {ms}（中位数）"
    ),
    "{ms} late (median)": " {ms}（中位数）",
    "up to {ms} late (p99)": "最多 {ms}（p99）",
    "the client may have moved {metric} by {ms} of its {value}": "客户端可能使 {metric} 偏移 {ms}（其值为 {value}）",
    "give it a CPU of its own: stop what else runs on this machine, or measure from another one": (
        "让其独占一个 CPU：停掉本机的其他任务，或换一台机器测量"
    ),
    "spread the load over more processes (--workers), or over more machines": (
        "用更多进程（--workers）或更多机器分担负载"
    ),
    "find what held it up (a slow disk under --output, a machine that sleeps), or measure from another one": (
        "找出是什么拖住了它（--output 所在磁盘过慢、机器休眠），或换一台机器测量"
    ),
    "this machine's wall clock was stepped {n} during a step": "测量期间本机的系统时钟被拨动 {n}",
    "the hypervisor gave up to {share} of this machine's CPU time to others: no stamp shows it": (
        "虚拟化层把本机最多 {share} 的 CPU 时间分给了其他虚拟机：时间戳无法体现"
    ),
    "{n} segment(s) sent again: the network lost some of the requests at first": (
        "重传了 {n} 个 TCP 报文段：部分请求起初在网络中丢失"
    ),
    "{n} segment(s) received out of order: lost or late on the way from the server": (
        "{n} 个 TCP 报文段乱序到达：从服务器来的途中丢失或延迟"
    ),
    "{n} of {m} {what:said} were in use": "已用 {m} 个{what}中的 {n} 个",
    "open files": "文件描述符",
    "ephemeral ports": "临时端口",
    "{share} of the events exact": "精确事件占 {share}",
    "{share} of the events exact (ms)": "精确事件占 {share}（ms）",
    "{n} workers, of each figure the worst": "{n} 个工作进程，各项取最差值",
    "{how:said} stamps, {n} rejected": "{how}时间戳，{n} 个被舍弃",
    "CPU {share}, waited for it {wait}": "CPU {share}，等待 CPU {wait}",
    "{lag:said} p50 {p50}, p99 {p99}, max {most}": "{lag} p50 {p50}，p99 {p99}，最大 {most}",
    "read lag": "读取滞后",
    "loop lag": "事件循环滞后",
    "refill lag": "补充滞后",
    "{n} GC pause(s) up to {t}": "{n} 次 GC 停顿，最长 {t}",
    "segments {parts:list}": "TCP 报文段：{parts}",
    "{n} retransmitted": "重传 {n}",
    "{n} out of order": "乱序 {n}",
    "{n} dropped": "丢弃 {n}",
    "{n} of {m} open files": "打开文件 {n}（上限 {m}）",
    "{n} open files": "打开文件 {n}",
    # why the server's count differs
    "other traffic on the server, or several answers to one request": "服务器上有其他流量，或一个请求有多个回答",
    "a proxy or gateway that holds requests back, an admission limit before the server's queue, or replicas whose"
    " metrics were not read (--metrics-url)": (
        "代理或网关扣留了请求、服务器队列之前有准入限制，或有副本的指标未被读取（--metrics-url）"
    ),
    "a proxy or gateway that holds requests back, an admission limit before the server's queue, or replicas whose"
    " metrics were not read (--metrics-url); requests that waited here to be tried again": (
        "代理或网关扣留了请求、服务器队列之前有准入限制、有副本的指标未被读取（--metrics-url），或请求在本机等待重试"
    ),
    "requests that waited here to be tried again": "请求在本机等待重试",
}
