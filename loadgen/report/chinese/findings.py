"""Findings of a diagnosis: sentences, facts and changes to try, by the rooms of `analysis.diagnose`."""

FINDINGS: dict[str, str] = {
    # levels
    "{n} in flight": "并发 {n}",
    # the client, failures, short answers
    "{what:any}: what was measured is this machine": "{what}：测到的是本机，而不是服务器",
    "steps that the client shaped": "受客户端影响的步骤数",
    "steps with an answer": "有回答的步骤数",
    "share of a CPU that the reading thread used": "读取线程的 CPU 占用率",
    "share of the requests that failed": "请求失败率",
    "share of the failures that are {kind}": "失败中 {kind} 的占比",
    "requests with long prompts fail{message:any}": "长提示的请求失败{message}",
    "shortest prompt that failed": "失败请求中最短的提示",
    "keep prompts below that length": "使提示短于该长度",
    "{n} of {m} requests fail, most of them by {kind:any}": "{m} 个请求中有 {n} 个失败，其中多数为 {kind}",
    "{n} of {m} requests fail, most of them by {kind}: {message}": (
        "{m} 个请求中有 {n} 个失败，其中多数为 {kind}：{message}"
    ),
    "look into the server's log for that message, and measure again once it is gone": (
        "在服务器日志中查找该消息，排除后重新测量"
    ),
    "requests time out at the higher loads and none at the lowest: the server has more to do than it can": (
        "高负载下请求超时，最低负载下没有：服务器不堪重负"
    ),
    "highest load without a timeout below those with one": "没有超时的最高负载（低于出现超时的负载）",
    "hold the load at {n}, where none times out": "把负载控制在 {n}，此时没有超时",
    "the server answers {n} requests at once, and refuses what is above": "服务器最多同时处理 {n} 个请求，超出的被拒绝",
    "requests in flight when more are refused": "开始拒绝请求时的并发数",
    "raise the server's limit of concurrent requests": "提高服务器的并发请求上限",
    "rate at which requests were answered where some were refused": "出现拒绝时的实际应答速率",
    "requests are refused (429 or 503) however many are in flight: a limit on how often one may ask": (
        "无论并发多少，都有请求被拒绝（429 或 503）：存在限流（请求频率限制）"
    ),
    "requests are refused (429 or 503) however many are in flight and whenever they are sent: no limit shows, on their"
    " number or on their rate": "无论并发多少、何时发送，都有请求被拒绝（429 或 503）：未见并发上限或限流",
    "share of the requests refused at {load:said}": "{load} 下被拒绝的请求占比",
    "send at a rate below it (--rate)": "以低于限流的速率发送（--rate）",
    "requests are ended after {t} s, whatever they are: a timeout on the way": (
        "请求一律在 {t} s 后被中断，与内容无关：途中有超时限制"
    ),
    "median time after which they ended": "中断时间中位数",
    "longest answer": "最长的成功回答",
    "raise the timeout of the gateway or proxy (nginx: proxy_read_timeout)": (
        "提高网关或代理的超时时间（nginx：proxy_read_timeout）"
    ),
    "share of the answers that are shorter than asked": "短于要求的回答占比",
    "share of the output tokens asked for that came": "实际输出 token 占要求的比例",
    "median of the short ones": "较短回答的 token 数中位数",
    "{what:said}; throughput and E2E are those of shorter answers than were asked for": (
        "{what}；吞吐量与 E2E 对应的是比要求更短的回答"
    ),
    "answers end at {n} tokens: a limit on output": "回答在 {n} 个 token 处结束：存在输出长度上限",
    "the model ends before its time": "模型提前结束生成",
    "raise the server's limit of output tokens": "提高服务器的输出 token 上限",
    "make it generate what is asked (ignore_eos, min_tokens)": "让模型生成所要求的长度（ignore_eos、min_tokens）",
    # output on its way
    "output comes in bursts, many events at once and nothing between: something on the way collects it first, so that"
    " TTFT and ITL are not the model's": (
        "输出成批到达，一次多个事件、其间没有输出：途中有环节先行缓冲，TTFT 与 ITL 不反映模型本身"
    ),
    "share of the answers that came so": "如此到达的回答占比",
    "median number of events in a burst": "每批事件数中位数",
    "time from one burst to the next": "批与批的间隔",
    "switch off buffering before the server (nginx: proxy_buffering off), and compare": (
        "关闭服务器前的缓冲（nginx：proxy_buffering off），再作对比"
    ),
    "mean number of output tokens in an event": "每个事件的平均输出 token 数",
    "share of the drafted tokens that were accepted, by the server": "草稿 token 接受率（服务器数据）",
    "tokens in nearly every event but an answer's last": "除末个事件外几乎每个事件的 token 数",
    "{what:said}; gaps between events are not those between tokens": "{what}；事件间隔不等于 token 间隔",
    "each event carries the same number of tokens: the server streams at an interval": (
        "每个事件的 token 数相同：服务器按固定间隔流式输出"
    ),
    "events carry different numbers of tokens, as speculative decoding makes them": (
        "各事件的 token 数不同，符合推测解码的特征"
    ),
    "compare with a run where it is off, and judge by TPOT, not by gaps between events": (
        "与关闭该功能的运行对比，并以 TPOT 而非事件间隔评判"
    ),
    "median time that most requests take to open a connection (name, TCP, TLS)": (
        "多数请求建立连接的时间中位数（域名解析、TCP、TLS）"
    ),
    "median time to open a TCP connection, once there and back": "建立 TCP 连接的时间中位数（一次往返）",
    "median time to the first byte, which comes before any token": "首字节时间中位数（早于任何 token）",
    "mean TTFT beyond the server's own": "平均 TTFT 超出服务器自报 TTFT 的部分",
    "at the lowest load the way to the server and back takes as long as {share} of the TTFT": (
        "最低负载下，到服务器的往返耗时相当于 TTFT 的 {share}"
    ),
    "wait before every first token, whatever the prompt's length": "每个首 token 之前的固定等待（与提示长度无关）",
    "a wait whatever the prompt stands before every first token: the way, or the server's front end": (
        "每个首 token 之前都有与提示无关的等待：来自网络途中或服务器前端"
    ),
    "median TTFT at the lowest load": "最低负载下的 TTFT 中位数",
    "measure from a machine next to the server, and compare": "在靠近服务器的机器上测量，再作对比",
    # caches
    "share of the prompt tokens from the cache, by the server's {source:said}": (
        "提示 token 的缓存命中占比（依据服务器的{source}）"
    ),
    "share of the prompt tokens that this run sent before, at most": "本次运行先前发送过的提示 token 占比（上限）",
    "the server had prompts in its prefix cache that this run did not send before: TTFT is not that of the workload": (
        "服务器的前缀缓存中有本次运行未曾发送过的提示：TTFT 不代表该工作负载"
    ),
    "restart the server, so that its prefix cache is empty, and measure again": "重启服务器以清空前缀缓存，再重新测量",
    "the prefix cache saves part of the prompts, as the workload shares it: TTFT holds for this sharing only": (
        "前缀缓存按工作负载的共享程度省去了部分提示的计算：TTFT 只对这种共享程度成立"
    ),
    "compare with prompts that share nothing (--shared-prefix-len 0)": (
        "与互不共享前缀的提示对比（--shared-prefix-len 0）"
    ),
    "prompts of which a part was sent before get their first token sooner than new ones of their length: a prefix cache"
    " is at work": "部分内容先前发送过的提示，首 token 早于同长度的新提示：前缀缓存在起作用",
    "their TTFT a token, as a share of that of new prompts": "其每 token 的 TTFT，与新提示之比",
    "new prompts": "新提示数",
    "let the server tell its cached tokens (vLLM: --enable-prompt-tokens-details), and measure again": (
        "让服务器报告缓存命中的 token 数（vLLM：--enable-prompt-tokens-details），再重新测量"
    ),
    # KV memory
    "the KV cache holds no more tokens: requests wait for memory, or are thrown out and computed again": (
        "KV 缓存已满：请求等待显存，或被抢占后重新计算"
    ),
    "give the KV cache more memory (vLLM: a higher --gpu-memory-utilization), everything else as it is": (
        "为 KV 缓存分配更多显存（vLLM：调高 --gpu-memory-utilization），其余不变"
    ),
    "median of the tokens that running requests hold": "运行中请求占用的 token 数中位数",
    "its spread around the mean": "其变异系数（相对均值的离散程度）",
    "spread of the number that run around its mean": "运行中请求数的变异系数",
    "preemptions in the steady windows, by the server": "稳定窗口内的抢占次数（服务器数据）",
    "share of the KV cache in use at the peak": "KV 缓存占用峰值",
    "mean number of requests that wait meanwhile": "同时排队的平均请求数",
    "share of the answers that stop for long while others go on": "长时间停顿（其他请求照常输出）的回答占比",
    # load and queues
    "requests come faster than the server answers: they pile up, and latencies grow as long as it lasts": (
        "请求到达快于服务器应答：请求不断堆积，延迟持续增长"
    ),
    "rate at which requests were sent": "请求发送速率",
    "rate at which they were answered": "请求应答速率",
    "requests in flight at the peak": "并发峰值",
    "send fewer: it answers about {rate} requests/s": "降低速率：服务器约能应答 {rate} 请求/秒",
    "more requests in flight bring less throughput: beyond its best load the server loses work": (
        "并发增加而吞吐量下降：超过最佳负载后服务器在做无用功"
    ),
    "throughput at {load:said}": "{load} 时的吞吐量",
    "hold no more than {load:said}": "控制在{load} 以内",
    "wait of the median request at {load:said}": "{load} 时请求等待时间的中位数",
    "share of its whole time": "占请求总时间的比例",
    "TPOT against that at the load before": "TPOT 与上一级负载之比",
    "requests in flight from here": "本机的并发请求数",
    "requests in the server, by its own count": "服务器内的请求数（服务器计数）",
    "requests wait before they reach the server: a gateway or proxy lets only so many through at a time": (
        "请求在到达服务器之前排队：网关或代理限制了同时放行的数量"
    ),
    "raise the limit of what stands before the server, now about {n}": "提高服务器前的并发限制（目前约为 {n}）",
    "requests running, by the server": "运行中的请求数（服务器数据）",
    "requests waiting there": "在服务器内排队的请求数",
    "the server admits about {n} requests to its batch, the others wait in its queue": (
        "服务器的批中约容纳 {n} 个请求，其余在其队列中排队"
    ),
    "raise the limit of sequences in a batch (vLLM: --max-num-seqs), now about {n}": (
        "提高批内的序列数上限（vLLM：--max-num-seqs，目前约为 {n}）"
    ),
    "requests that run at once": "同时运行的请求数",
    "requests in flight": "并发请求数",
    "about {n} requests run at once whatever is sent, the others wait: a limit of the batch, or of what stands before"
    " the server": "无论发送多少，约有 {n} 个请求同时运行，其余排队：批大小限制，或服务器前的限制",
    "let the server's own metrics be read (--metrics-url): they tell on which side of its door requests wait": (
        "读取服务器自身的指标（--metrics-url）：可判断请求是在服务器内还是在其之前排队"
    ),
    "requests wait before their first token, the longer the more are in flight, and what for does not show": (
        "首 token 之前存在排队，并发越高等待越久，但看不出在等什么"
    ),
    "let the server's own metrics be read (--metrics-url), and measure again": (
        "读取服务器自身的指标（--metrics-url），再重新测量"
    ),
    # compute
    "share of the time that prompts take at {load:said}": "{load} 时预填充占用的时间比例",
    "slope of TTFT over the input length without load": "无负载时 TTFT 对输入长度的斜率",
    "R² of that": "该拟合的 R²",
    "prompt tokens that one engine computes": "单个引擎的预填充速度",
    "the server computes prompts most of the time: TTFT grows with their length, and tokens wait for them": (
        "服务器大部分时间用于预填充：TTFT 随提示长度增长，解码要等待预填充"
    ),
    "where prompts share text turn the prefix cache on, else give prefill more compute (one more GPU)": (
        "若提示有共同前缀则开启前缀缓存，否则为预填充增加算力（加一块 GPU）"
    ),
    "median TPOT at {load:said}": "{load} 时的 TPOT 中位数",
    "growth": "增长",
    "growth without what prompts take": "扣除预填充影响后的增长",
    "median number of requests that decode at once": "同时解码的请求数中位数",
    "median of the tokens that they hold": "其占用的 token 数中位数",
    "each token takes the longer the more requests are in the batch: their contexts are read, and their tokens"
    " computed, in every step": "批中请求越多，每个 token 耗时越长：每一步都要读取各请求的上下文并计算其 token",
    "use weights of fewer bits (fp8), everything else as it is": "改用更低比特的权重（fp8），其余不变",
    "while a long prompt is computed the other requests get no token: their gaps coincide with it": (
        "长提示预填充期间其他请求没有输出：其 token 间隔与之重合"
    ),
    "compute long prompts in smaller pieces (vLLM: chunked prefill, a lower --max-num-batched-tokens)": (
        "把长提示切成更小的块计算（vLLM：分块预填充，调低 --max-num-batched-tokens）"
    ),
    "share of the time in long gaps that coincides with a long prompt": "长间隔时间中与长提示重合的比例",
    "share of all time that does": "全部时间中的重合比例",
    "median long gap": "长间隔中位数",
    "usual gap": "通常的间隔",
    "median long prompt": "长提示的长度中位数",
    "median prompt": "提示长度中位数",
    "share of the others' time that these gaps take": "这些间隔占其他请求时间的比例",
    # two runs
    "TPOT on {gpus} at {load:said}": "{gpus} 块 GPU、{load} 时的 TPOT",
    "speed-up": "加速比",
    "ideal speed-up": "理想加速比",
    "share of the ideal that is reached": "达到理想加速比的比例",
    "speed-up of a prompt token": "每个提示 token 的加速比",
    "{most} GPUs are {ratio} times as fast as {few}, not {ideal}: the rest goes to exchanges between them, and to what"
    " does not shrink": (
        "{most} 块 GPU 的速度是 {few} 块的 {ratio} 倍，而非 {ideal} 倍：其余耗于 GPU 间通信和无法并行的部分"
    ),
    "share each layer among fewer GPUs (tp {n}) and run more replicas instead": (
        "降低张量并行度（tp {n}），改为运行更多副本"
    ),
    # what no load can meet
    "one request alone has a median {metric} of {t} ms: no load can meet {objective}": (
        "单独一个请求的 {metric} 中位数已为 {t} ms：任何负载都无法满足 {objective}"
    ),
    "limit of the objective": "目标的上限",
    "median TTFT of a request alone": "单独一个请求的 TTFT 中位数",
    "median TPOT of a request alone": "单独一个请求的 TPOT 中位数",
    "mean time in the server's queue": "服务器中的平均排队时间",
    "mean time of the prefill, by the server": "平均预填充时间（服务器数据）",
    "set an objective that a request alone can meet, or make what it takes alone shorter": (
        "设定单独一个请求能满足的目标，或缩短其单独所需的时间"
    ),
    # what has no cause
    "most steps were not steady ({kinds:list}): their intervals promise too much": (
        "多数步骤不稳定（{kinds}）：其置信区间偏窄"
    ),
    "steps that were not steady": "不稳定的步骤数",
    "steps": "步骤总数",
    "measure longer, and again at another time": "延长测量，并在其他时间再测一次",
    "growth of E2E from the lowest to the highest load": "E2E 从最低负载到最高负载的增长",
    "throughput there, against the best below": "最高负载的吞吐量，与更低负载中的最高值之比",
    "steps that break an objective": "违反目标的步骤数",
    "something holds it up, and the log does not tell what": "存在瓶颈，但日志不足以说明是什么",
    "let the server's own metrics be read (--metrics-url), at loads from 1 up, and diagnose that run": (
        "读取服务器自身的指标（--metrics-url），从负载 1 起测量，再诊断该次运行"
    ),
}
