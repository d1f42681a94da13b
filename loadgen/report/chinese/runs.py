"""What a run writes into its own log as text: notes of the preflight, the workload, the runner and the simulator."""

RUNS: dict[str, str] = {
    # the address and the model
    "the part of the address after # is not sent": "地址中 # 之后的部分不发送",
    "{page} at the end of the address is a page of the server and was left out": (
        "地址末尾的 {page} 是服务器的页面，已略去"
    ),
    "the address ends in {path}, so the endpoint is {name}": "地址以 {path} 结尾，因此端点为 {name}",
    "through the proxy {url}": "经由代理 {url}",
    "the server does not list the model {asked}; it has {names}": "服务器未列出模型 {asked}；其列出的有 {names}",
    "the server does not list the model {asked}; it has {names}; did you mean {close}?": (
        "服务器未列出模型 {asked}；其列出的有 {names}；是否指 {close}？"
    ),
    "model {name}, the only one there": "模型 {name}，唯一可用的模型",
    "model {name}, the only one there; {aside:said}": "模型 {name}，唯一可用的模型；{aside}",
    "{n} adapter(s) on it left aside": "忽略其上的 {n} 个 adapter",
    "{names} left aside, which generates no text": "忽略不生成文本的 {names}",
    "{n} adapter(s) on it left aside; {names} left aside, which generates no text": (
        "忽略其上的 {n} 个 adapter；忽略不生成文本的 {names}"
    ),
    "model {name}; the server's other names for it: {names}": "模型 {name}；服务器对它的其他名称：{names}",
    "models {names}; lengths and limits learnt on {first}": "模型 {names}；长度与限制以 {first} 测得",
    "{n} of the {m} models of the file were not tried": "文件中的 {m} 个模型有 {n} 个未试用",
    "the server takes at most {n} requests at once and refuses more with 429": (
        "服务器最多同时接受 {n} 个请求，超出的以 429 拒绝"
    ),
    # lengths
    "by the server's tokenizer": "依据服务器的 tokenizer",
    "by the local tokenizer": "依据本地 tokenizer",
    "by usage": "依据 usage",
    "as token ids": "以 token id 发送",
    "exact {by:said}": "精确（{by}）",
    "about right, ±1 %": "大致准确（±1%）",
    "input lengths {how:said}: {seen:said}": "输入长度{how}：{seen}",
    "input lengths {how:said}; the server tells no count to try them by": (
        "输入长度{how}；服务器不报告 token 数，无从核对"
    ),
    "input lengths {how:said}, without what the server puts around a text: it tells no count": (
        "输入长度{how}，不含服务器在文本前后添加的内容：服务器不报告 token 数"
    ),
    "the server reports no prompt tokens: input lengths are estimates by words": (
        "服务器不报告提示 token 数：输入长度按词数估计"
    ),
    "input of {n} tokens asked for, {m} by the server's count": "要求输入 {n} 个 token，服务器计数为 {m}",
    "{n} around the text; {seen:said}": "文本前后另有 {n} 个 token；{seen}",
    "{n} around the text": "文本前后另有 {n} 个 token",
    "{n} tokens a word, {seen:said}": "每词 {n} 个 token，{seen}",
    "the server's count of prompt tokens does not follow the text: {pairs:list}": (
        "服务器的提示 token 计数与文本不成比例：{pairs}"
    ),
    "{n} for {m} words": "{m} 个词计 {n}",
    "the input length is {off} off: {seen:said}": "输入长度相差 {off}：{seen}",
    "input and output nearly fill the context of {n} tokens: some requests may be refused as too long": (
        "输入与输出几乎占满 {n} 个 token 的上下文：部分请求可能因过长被拒绝"
    ),
    "the server counts {n} prompt tokens where the local tokenizer counts {m} (ratio {ratio}); rates use the server's"
    " count": "服务器计得 {n} 个提示 token，本地 tokenizer 计得 {m} 个（比值 {ratio}）；速率以服务器计数为准",
    "{whose:said} of less than {n} tokens cannot be had: a word and what stands around it are that much": (
        "{whose}少于 {n} 个 token，无法生成：一个词加上其前后内容已有这么多"
    ),
    "inputs": "部分输入",
    "the {share} of inputs": "{share} 的输入",
    # what the server did of what was asked
    "the answer {what:said}, twice: every such request counts as failed": "回答两次{what}：此类请求均计为失败",
    "held no output": "没有输出",
    "ended without [DONE] or a finish reason": "未以 [DONE] 或 finish reason 结束",
    "the server answers without streaming: TTFT and TPOT cannot be measured": (
        "服务器以非流式方式应答：无法测量 TTFT 与 TPOT"
    ),
    "the server refuses stream_options: tokens are counted by {by:said}": "服务器拒绝 stream_options：token 数按{by}计",
    "the server reports no usage, though asked: tokens are counted by {by:said}": (
        "已要求 usage 但服务器未返回：token 数按{by}计"
    ),
    "the local tokenizer": "本地 tokenizer ",
    "events": "事件",
    "the server refuses ignore_eos and min_tokens: output lengths are its own": (
        "服务器拒绝 ignore_eos 与 min_tokens：输出长度由其自定"
    ),
    "the server gives {n} output tokens where {m} were asked for: plans use what was seen": (
        "要求 {m} 个输出 token，服务器给出 {n} 个：计划以实测为准"
    ),
    # several servers
    "requests go to {n} servers in turn": "请求轮流发往 {n} 个服务器",
    "is {kind:any}, the first server is {first:any}": "为 {kind}，第一个服务器为 {first}",
    "of an unknown kind": "未知类型",
    "its context is {own:any}, the first server's {first:any}": "其上下文长度为 {own}，第一个服务器为 {first}",
    "{n} tokens": "{n} 个 token",
    "unknown": "未知",
    "it obeys the length asked for in another way than the first server": "其对所要求长度的遵从方式与第一个服务器不同",
    "a word costs {n} tokens there and {m} at the first server: is it the same model?": (
        "那里每词 {n} 个 token，第一个服务器为 {m}：是同一个模型吗？"
    ),
    "{where}: {warning:said}": "{where}：{warning}",
    # the runner
    "the server went away in step {n} and was back after {t} s: that level was measured again": (
        "服务器在步骤 {n} 中断，{t} s 后恢复：该负载已重新测量"
    ),
    "interrupted before step {n}, and resumed": "在步骤 {n} 之前中断，后继续",
    "resumed: the requests of {many} {cut} (cut short, or shaped by this client) are kept but not counted, and step {n}"
    " measured that load again": (
        "后继续：步骤 {cut} 未完成或受本客户端影响，其请求保留但不计入，步骤 {n} 重新测量了该负载"
    ),
    "resumed against a server that is not the same: {changes}": "继续运行时服务器已不同：{changes}",
    "{address} did not always answer ({words}): its connections went to other addresses of that name": (
        "{address} 有时无应答（{words}）：其连接改用该域名的其他地址"
    ),
    "{n} worker(s) on {where:said}": "{n} 个工作进程，位于{where}",
    "{n} node(s) of the Ray cluster at {address}": " {address} 处 Ray 集群的 {n} 个节点",
    "{n} node(s) of the Ray cluster at {address}, whose clocks were known within {ms} ms": (
        " {address} 处 Ray 集群的 {n} 个节点，其时钟误差在 {ms} ms 以内"
    ),
    "{n} node(s) of the Ray cluster at {address}, whose clocks were known within {ms} ms: starts and windows are no"
    " more exact than that, latencies are": (
        " {address} 处 Ray 集群的 {n} 个节点，其时钟误差在 {ms} ms 以内：起止与窗口仅精确到该程度，延迟不受影响"
    ),
    # the workload
    "objectives of {source}, as no --slo is given: {objectives}": "未给出 --slo，采用 {source} 的目标：{objectives}",
    "--rate is of conversations, with {turns:said}; the turns after the first come as their users send them": (
        "--rate 指会话速率，{turns}；首轮之后的轮次由用户按其节奏发送"
    ),
    "{n} turns in the mean": "平均 {n} 轮",
    "each of the concurrent slots is a user, who has one conversation after the other, with {turns:said}": (
        "每个并发位是一个用户，依次进行会话，{turns}"
    ),
    "{n} turns in the mean; who thinks is not in flight": "平均 {n} 轮；思考中的用户不计入并发",
    "the limits of {name} refuse {share} of draws, made again": "{name} 的长度限制舍弃了 {share} 的抽样，已重新抽取",
    "{has:said}: past the end it is sent from its beginning again, maybe out of the server's cache": (
        "{has}：发送完后从头再发，可能命中服务器缓存"
    ),
    "{name} has {n} prompt(s)": "{name} 有 {n} 条提示",
    "the first {n} lines of {name} are checked; the rest is, as it is sent": (
        "已检查 {name} 的前 {n} 行；其余在发送时检查"
    ),
    "keys of {name} that are not used: {keys} (a line with messages, or with a model, is sent whole)": (
        "{name} 中未使用的键：{keys}（含 messages 或 model 的行会整行发送）"
    ),
    "{n} bodies of {name} say stream: false; they are sent with stream: true": (
        "{name} 中有 {n} 个请求体写明 stream: false；已改为 stream: true 发送"
    ),
    # traces
    "{how:said}: requests are spread inside them, by the seed (--as-recorded leaves them)": (
        "{how}：请求按随机种子在粒度内分散（--as-recorded 保持原样）"
    ),
    "its stamps come in steps of {n} s": "其时间戳粒度为 {n} s",
    "{n} rows of the trace are left out: {why:any}": "略去 trace 中的 {n} 行：{why}",
    "more than {n} tokens": "超过 {n} 个 token",
    "an empty text": "文本为空",
    "a conversation without a question and its answer": "会话没有一问一答",
    "a window before any lengths": "窗口早于任何长度数据",
    "a window without lengths": "窗口没有长度数据",
    "no time of its own": "没有自己的时间",
    "{looked:said}; the rest is read as it is sent": "{looked}；其余在发送时读取",
    "the first {n} requests of the trace were looked at before the start": "开始前查看了 trace 的前 {n} 个请求",
    "past its end the trace is sent from its beginning again, with another text": "trace 发送完后从头再发，文本不同",
    "turns of a conversation are sent one after the other, each with what was said before{when:said}": (
        "会话的各轮依次发送，每轮附带此前内容{when}"
    ),
    "none before its time": "且不早于其时刻",
    "turns of a session are sent at the trace's times, none before the one before it has ended": (
        "会话的各轮按 trace 的时刻发送，且不早于前一轮结束"
    ),
    "what that run's prompts shared is not sent again: each is as long, with a text of its own": (
        "那次运行的提示的共享部分不再重现：长度相同，文本各不相同"
    ),
    "prompts share their text by the trace's blocks of {n} tokens": "提示按 trace 的块（每块 {n} 个 token）共享文本",
    "{n} client(s) of ServeGen: requests are drawn, by the seed": "ServeGen 的 {n} 个客户端：请求按随机种子抽取",
    "the images of its requests are not sent": "不发送其请求中的图像",
    "lengths of its texts are estimated at {n} characters a token; --tokenizer counts": (
        "文本长度按每 token {n} 个字符估计；用 --tokenizer 可精确计数"
    ),
    # the simulator
    "the simulator's computed capacity for this workload is {n} output tokens/s; {share} of it was measured": (
        "模拟器对该工作负载的计算容量为 {n} 输出 token/s；实测达到其 {share}"
    ),
    "the simulator's computed capacity for this workload is {n} output tokens/s; {share} of it was measured;"
    " {more:said}": ("模拟器对该工作负载的计算容量为 {n} 输出 token/s；实测达到其 {share}；{more}"),
    "the simulated server itself fell behind its engine: it lost {n} s beside {m} s of steps, so the figures at high"
    " loads are of this machine": (
        "模拟服务器自身落后于其引擎：在 {m} s 的步进之外损失 {n} s，高负载下的数据反映的是本机"
    ),
}
